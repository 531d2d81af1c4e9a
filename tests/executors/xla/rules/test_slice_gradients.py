import keras

from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import list_ops


def rows() -> keras.Model:
    """Each row of the images is read alone."""
    inputs = keras.Input((8, 32, 16))
    x = keras.layers.TimeDistributed(keras.layers.Conv1D(16, 3, padding="same"))(inputs)
    x = keras.layers.TimeDistributed(keras.layers.Conv1D(16, 3, padding="same"))(x)
    return keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(x))


def test_gradients_of_slices_are_put_together() -> None:
    ops = list_ops(rows, "AddN")
    assert any(CPU.lower(op) for op in ops)
    assert not any(CPU.without("slice_gradients").lower(op) for op in ops)
