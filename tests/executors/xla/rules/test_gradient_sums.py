import keras

from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import list_materialized


def many_readers() -> keras.Model:
    """Each convolution reads all before it."""
    inputs = keras.Input((32, 32, 8))
    found = [keras.layers.Conv2D(8, 3, padding="same")(inputs)]
    for _ in range(4):
        total = keras.layers.Add()(found) if len(found) > 1 else found[0]
        y = keras.layers.ReLU()(keras.layers.BatchNormalization()(total))
        found.append(keras.layers.Conv2D(8, 3, padding="same")(y))
    return keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(found[-1]))


def test_sums_of_gradients_lie_in_buffers() -> None:
    held, less = (list_materialized(many_readers, one, "AddN") for one in (CPU, CPU.without("gradient_sums")))
    assert len(held) > len(less)
