"""The fastest way to an effective batch: what is tried keeps to the budget, and trains as one large batch does."""

import json

import keras
import numpy as np
import pytest

import checkmate_tf
from checkmate_tf import cli
from checkmate_tf.errors import BatchError, BudgetError, InfeasibleBudgetError, SearchInterrupt
from checkmate_tf.max_batch import best_batch as module
from checkmate_tf.reports.batches import REFUSED, REMATERIALIZED, STOCK, BatchTable, BatchTrial
from checkmate_tf.training.accumulation import count_accumulated, make_accumulating, take_optimizer

_ROWS = 1331  # which four sizes divide


def _make_model(optimizer="sgd"):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(64, activation="tanh") for _ in range(6)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)], name="dense_net")
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def _make_data():
    numbers = np.random.default_rng(0)
    return numbers.normal(size=(_ROWS, 64)).astype(np.float32), numbers.normal(size=(_ROWS, 1)).astype(np.float32)


def _find(model, budget="3.75MiB", **options):
    return checkmate_tf.best_batch(
        model,
        budget=budget,
        effective_batch_size=_ROWS,
        options=checkmate_tf.Options(costs="flops"),
        time_limit_s=1.0,
        progress=False,
        **options,
    )


@pytest.fixture(scope="module")
def searched():
    model = _make_model("adam")
    before = [weight.numpy() for weight in model.weights]
    optimizer = model.optimizer
    found = _find(model)
    assert model.optimizer is optimizer
    assert not optimizer.built
    assert all((now.numpy() == then).all() for now, then in zip(model.weights, before, strict=True))
    return model, found


def test_what_is_tried_makes_the_effective_batch_and_keeps_to_the_budget(searched):
    _, found = searched
    assert {trial.batch_size * trial.accumulation_steps for trial in found.trials} == {_ROWS}
    assert {trial.outcome for trial in found.trials} >= {STOCK, REMATERIALIZED}
    ran = [trial for trial in found.trials if trial.outcome != REFUSED]
    assert max(trial.peak_bytes for trial in ran) <= found.budget_bytes
    assert found.best.samples_per_s == max(trial.samples_per_s for trial in ran)
    assert found.largest.batch_size > found.best_stock.batch_size
    assert f"steps of {found.batch_size} rows" in str(found)


def test_what_is_installed_trains_as_one_large_batch(searched):
    model, found = searched
    x, y = _make_data()
    stock = _make_model("adam")
    stock.fit(x, y, batch_size=_ROWS, epochs=2, verbose=0, shuffle=False)
    found.install()
    assert count_accumulated(model.optimizer) == found.accumulation_steps
    model.fit(x, y, batch_size=found.batch_size, epochs=2, verbose=0, shuffle=False)
    for mine, theirs in zip(model.weights, stock.weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=1e-5)
    checkmate_tf.restore(model)


def test_an_interrupt_while_it_is_installed_leaves_the_optimizer(searched, monkeypatch):
    model, found = searched
    optimizer = model.optimizer

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.InstalledStep, "plan", interrupt)
    with pytest.raises(KeyboardInterrupt):
        found.install()
    assert model.optimizer is optimizer


def test_a_budget_that_not_one_row_fits_is_refused_with_the_least():
    model = _make_model()
    optimizer = model.optimizer
    with pytest.raises(InfeasibleBudgetError, match="always holds"):
        _find(model, "100KiB")
    assert model.optimizer is optimizer


def test_updates_that_take_more_than_their_plans_are_refused(monkeypatch):
    monkeypatch.setattr(module, "run_update", lambda *_: (1.0, 10 << 20))
    with pytest.raises(
        InfeasibleBudgetError, match=r"steps of \d+ rows takes .*, above the budget of 3.75 MiB"
    ) as raised:
        _find(_make_model())
    assert raised.value.least_budget_bytes > 10 << 20


@pytest.mark.parametrize("size", [0, True, 8.0])
def test_an_effective_batch_of_no_rows_is_refused(size):
    with pytest.raises(BatchError, match="effective_batch_size is"):
        checkmate_tf.best_batch(_make_model(), budget="4MiB", effective_batch_size=size)


def test_a_share_of_a_peak_is_no_budget_for_all_sizes():
    with pytest.raises(BudgetError, match="give bytes"):
        _find(_make_model(), "60%")


def test_an_interrupt_tells_what_was_found_and_leaves_the_optimizer(monkeypatch):
    model = _make_model()
    optimizer, run_update, calls = model.optimizer, module.run_update, []

    def run_twice(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run_update(*arguments)

    monkeypatch.setattr(module, "run_update", run_twice)
    with pytest.raises(SearchInterrupt, match="interrupted with 1 size tried") as raised:
        _find(model)
    assert [trial.outcome for trial in raised.value.found.trials] == [STOCK]
    assert model.optimizer is optimizer


def test_an_optimizer_that_accumulates_goes_on_from_where_the_one_before_is():
    model = _make_model(keras.optimizers.Adam(1e-3, name="mine"))
    x, y = _make_data()
    for _ in range(3):
        model.train_on_batch(x, y)
    before = {variable.path: variable.numpy() for variable in model.optimizer.variables}
    take_optimizer(model, make_accumulating(model.optimizer, 4))
    after = {variable.path: variable.numpy() for variable in model.optimizer.variables}
    assert after["mine/iteration"] == 4 * before.pop("mine/iteration") == 12
    assert int(model.optimizer.iterations) == 3
    assert all((after[path] == value).all() for path, value in before.items())


def test_loss_scaling_stays_around_what_accumulates():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5, momentum=0.9), initial_scale=8.0)
    made = make_accumulating(scaled, 3)
    assert (made.initial_scale, made.inner_optimizer.momentum, count_accumulated(made)) == (8.0, 0.9, 3)
    assert count_accumulated(make_accumulating(made, 1)) == 1


def test_it_says_where_stock_training_is_faster_and_what_accumulation_changes():
    trials = (
        BatchTrial(8, 4, STOCK, 50, 1.0),
        BatchTrial(16, 2, REMATERIALIZED, 90, 2.0, 0.1, 3),
        BatchTrial(32, 1, REFUSED),
    )
    table = BatchTable("net", "CPU:0", 100, 32, trials, normalizes=True, took_s=1.0)
    text = str(table)
    assert "Rematerialized steps of 16 rows fit, and are slower: 16 samples a second." in text
    assert "it takes statistics of 8 rows, not of 32" in text
    assert [line.get_label() for line in table.plot().axes[0].lines][:2] == [STOCK, REMATERIALIZED]


def test_the_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_net.py").write_text(
        "import keras\n"
        "def build():\n"
        "    layers = [keras.layers.Dense(64, activation='tanh') for _ in range(4)]\n"
        "    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse', jit_compile=False)\n"
        "    return model\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["my_net:build", "--effective-batch-size", "121", "--budget", "1GiB", "--costs", "flops", "--json"]
    assert cli.main(["best-batch", *arguments, "--output", "schedule.json", "--plot", "batches.png"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["batch_size"] * found["accumulation_steps"] == found["effective_batch_size"] == 121
    assert found["samples_per_s"] == max(trial["samples_per_s"] for trial in found["trials"])
    assert checkmate_tf.load_schedule("schedule.json").order
    assert (tmp_path / "batches.png").stat().st_size > 0
