import keras

from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import list_ops


def gathered() -> keras.Model:
    """Rows of what a layer yields, gathered from constant places."""
    inputs = keras.Input((64, 64))
    x = keras.layers.Dense(64)(inputs)
    rows = keras.ops.take(keras.ops.reshape(x, (-1, 64)), list(range(0, 512, 2)), axis=0)
    return keras.Model(inputs, keras.layers.Dense(4)(keras.ops.reshape(rows, (-1, 32 * 64))))


def test_zeros_under_a_sum_by_segments_come_late() -> None:
    ops = list_ops(gathered, "UnsortedSegmentSum")
    assert any(CPU.lower(op) for op in ops)
    assert not any(CPU.without("segment_sums").lower(op) for op in ops)
