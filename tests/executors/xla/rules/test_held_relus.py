import keras

from checkmate_tf.executors.xla.backends import GPU
from tests.executors.xla.rules.steps import list_materialized
from tests.training_steps import conv_chain

NUM_LAYERS = 4


def normalized() -> keras.Model:
    """Convolutions, each with a ReLU after its normalization."""
    inputs = x = keras.Input((32, 32, 16))
    for _ in range(NUM_LAYERS):
        x = keras.layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x)))


def test_relus_that_filter_gradients_read_lie_in_buffers_on_a_gpu() -> None:
    held, less = (list_materialized(normalized, one, "Relu") for one in (GPU, GPU.without("held_relus")))
    assert len(held) - len(less) == NUM_LAYERS - 1  # no product reads the last ReLU


def test_relus_of_products_are_left_to_their_own_rule() -> None:
    assert list_materialized(conv_chain, GPU, "Relu") == list_materialized(
        conv_chain, GPU.without("held_relus"), "Relu"
    )
