"""The curve of a step keeps its peak, and what is held where nothing changes."""

from checkmate_tf.profiling.memory import Allocation
from experiments.memory_over_a_step import make_curve


def test_a_curve_has_the_most_bytes_of_each_part() -> None:
    allocations = [Allocation("a", 100, 0, 40), Allocation("b", 50, 12, 13), Allocation("c", 7, 20, None)]
    curve = make_curve(allocations, parts=4)
    assert curve == {"ms": 0.04, "held_bytes": [100, 150, 107, 107]}
