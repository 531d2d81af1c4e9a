from functools import partial

from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import make_graph
from tests.executors.xla.test_xla import attention


def test_keys_and_values_are_held_in_one_form() -> None:
    build = partial(attention, num_blocks=1)
    assert make_graph(build, CPU).transposed
    assert not make_graph(build, CPU.without("transposes")).transposed
