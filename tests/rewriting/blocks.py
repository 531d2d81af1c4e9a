"""Small transformers whose feed-forward blocks are wide, and their steps of loss and gradients."""

import keras
import tensorflow as tf

from checkmate_tf.tf_private import ConcreteFunction

NUM_WORDS, LENGTH, WIDTH = 20, 48, 8


def make_transformer(
    *, length: int = LENGTH, width: int = WIDTH, num_blocks: int = 2, dtype: str = "float64", is_gated: bool = False
) -> keras.Model:
    """Makes a language model; gated blocks multiply two wide products, as those of Llama do."""
    keras.utils.set_random_seed(0)
    tokens = keras.Input((length,), dtype="int32")
    hidden = keras.layers.Embedding(NUM_WORDS, width, dtype=dtype)(tokens)
    for _ in range(num_blocks):
        attended = keras.layers.MultiHeadAttention(2, width // 2, dtype=dtype)(hidden, hidden, use_causal_mask=True)
        hidden = keras.layers.Add(dtype=dtype)([hidden, attended])
        normed = keras.layers.LayerNormalization(dtype=dtype)(hidden)
        wide = keras.layers.Dense(16 * width, activation="silu" if is_gated else "gelu", dtype=dtype)(normed)
        if is_gated:
            gate = keras.layers.Dense(16 * width, dtype=dtype)(normed)
            wide = keras.layers.Multiply(dtype=dtype)([wide, gate])
        hidden = keras.layers.Add(dtype=dtype)([hidden, keras.layers.Dense(width, dtype=dtype)(wide)])
    return keras.Model(tokens, keras.layers.Dense(NUM_WORDS, dtype=dtype)(hidden))


def trace_blocks(model: keras.Model, *, batch_size: int = 2, jit_compile: bool = False) -> ConcreteFunction:
    """Traces loss and gradients."""
    variables = [variable.value for variable in model.trainable_variables]
    length = model.inputs[0].shape[1]

    def step(tokens: tf.Tensor, words: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            logits = model(tokens, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(words, logits, from_logits=True)
            loss = tf.reduce_mean(losses)
        return loss, tape.gradient(loss, variables)

    spec = tf.TensorSpec((batch_size, length), tf.int32)
    return tf.function(step, autograph=False, jit_compile=jit_compile).get_concrete_function(spec, spec)


def make_tokens(length: int = LENGTH, batch_size: int = 2) -> list[tf.Tensor]:
    """Makes tokens, and those that follow."""
    random = tf.random.Generator.from_seed(0)
    return [random.uniform((batch_size, length), 0, NUM_WORDS, tf.int32) for _ in range(2)]
