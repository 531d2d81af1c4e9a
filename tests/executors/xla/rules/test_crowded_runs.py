from functools import partial

from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import emit
from tests.executors.xla.test_xla import skipping_convolutions


def test_runs_for_one_gradient_wait_for_the_newest_gradient_of_a_filter() -> None:
    build = partial(skipping_convolutions, rates=(1, 2, 4))
    written = [emit(build, one, again=True).graph_def for one in (CPU, CPU.without("crowded_runs"))]
    assert len(written[0].node) > len(written[1].node)
