"""The demo's runs, on a smaller model: real training, the budget kept, the weights those of stock training."""

import pytest

from checkmate_tf.demo import make_tasks, run_task


@pytest.mark.measures_memory
def test_demo_trains_within_its_budget() -> None:
    task = next(make_tasks(image_size=32, width=16, batch_size=32, num_batches=3))
    stock, rematerialized = run_task(task, ["60%"], epochs=2, time_limit_s=4.0)
    assert (stock.plan, stock.weight_difference) == (None, 0.0)
    plan = rematerialized.plan
    assert plan is not None
    assert plan.measured_overhead is not None
    assert plan.budget_bytes == int(0.6 * stock.predicted_peak_bytes)
    assert rematerialized.predicted_peak_bytes <= plan.budget_bytes
    assert rematerialized.measured_peak_bytes < 0.8 * stock.measured_peak_bytes
    assert rematerialized.weight_difference < 1e-3
