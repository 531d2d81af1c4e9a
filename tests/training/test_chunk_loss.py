"""`chunk_loss`: a model of a large vocabulary trains in chunks of rows, with the numbers of stock training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf import Axis, Options, max_batch_size, pareto, rematerialize, rewrite_function
from checkmate_tf.errors import BatchError, SolverError, UnsupportedModelError

NUM_WORDS, WIDTH, BATCH, LENGTH = 4096, 32, 2, 384


def make_model(*, jit_compile: bool = False, policy: str = "float32", **settings: object) -> keras.Model:
    """Makes a small language model."""
    keras.utils.set_random_seed(0)
    tokens = keras.Input((LENGTH,), dtype="int32")
    hidden = keras.layers.Embedding(NUM_WORDS, WIDTH, dtype=policy)(tokens)
    hidden = keras.layers.Dense(WIDTH, activation="gelu", dtype=policy)(hidden)
    logits = keras.layers.Dense(NUM_WORDS, dtype=policy)(hidden)
    model = keras.Model(tokens, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, weighted_metrics=["accuracy"], jit_compile=jit_compile, **settings)
    return model


def make_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Makes two batches of tokens, those that follow, and weights, some of them none."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, NUM_WORDS, (2 * BATCH, LENGTH), "int32")
    return tokens, np.roll(tokens, -1, axis=1), (random.random((2 * BATCH, LENGTH)) > 0.2).astype("float32")


def fit(model: keras.Model) -> dict[str, list[float]]:
    x, y, weights = make_data()
    return model.fit(x, y, sample_weight=weights, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history


def plan(model: keras.Model, budget: str, chunk_loss: object, **settings: object) -> object:
    options = Options(costs="flops", chunk_loss=chunk_loss)
    return rematerialize(
        model, batch_size=BATCH, data=make_data(), budget=budget, options=options, progress=False, **settings
    )


@pytest.mark.measures_memory
def test_trains_as_stock_within_half_of_its_memory() -> None:
    stock, model = make_model(), make_model()
    planned = plan(model, "50%", "auto")
    assert planned.chunks[0].num_chunks > 1
    assert planned.measured_peak_bytes <= planned.budget_bytes
    assert planned.difference < 1e-4
    assert f"in {planned.chunks[0].num_chunks} chunks of {planned.chunks[0].chunk_rows} rows" in str(planned)
    mine, theirs = fit(model), fit(stock)
    for name, values in theirs.items():
        np.testing.assert_allclose(mine[name], values, rtol=1e-5, err_msg=name)
    for one, two in zip(model.weights, stock.weights, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


def test_xla_trains_as_stock() -> None:
    """The metrics are rewritten with the step, so that it returns no logits."""
    stock, model = make_model(), make_model(jit_compile=True)
    planned = plan(model, "60%", 100)
    assert planned.chunks[0].chunk_rows == 96
    assert planned.measured_peak_bytes < 0.6 * planned.stock_peak_bytes
    mine, theirs = fit(model), fit(stock)
    for name, values in theirs.items():
        np.testing.assert_allclose(mine[name], values, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_and_accumulated_gradients(policy: str) -> None:
    """Weights end as near to those in 32 bits as the stock step's do."""

    def make(policy: str) -> keras.Model:
        model = make_model(policy=policy)
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        if policy == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=128.0)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, jit_compile=False)
        return model

    exact, stock, model = make("float32"), make(policy), make(policy)
    assert plan(model, "90%", 100, measure=False).chunks[0].num_chunks == 8
    before = [weight.numpy() for weight in exact.weights]
    np.testing.assert_allclose(fit(model)["loss"], fit(stock)["loss"], rtol=2e-3)
    fit(exact)
    for first, wanted, mine, theirs in zip(before, exact.weights, model.weights, stock.weights, strict=True):
        change = np.abs(wanted.numpy() - first).max()
        assert np.abs(mine.numpy() - wanted).max() < 1.5 * np.abs(theirs.numpy() - wanted).max() + 0.01 * change


def test_auto_leaves_a_step_that_fits_as_it_is() -> None:
    assert plan(make_model(), "100%", "auto", measure=False).chunks == ()


def test_says_why_a_loss_cannot_be_in_chunks() -> None:
    """For "auto" the rest of the step is rematerialized all the same."""
    model = make_model()
    model.compile("sgd", lambda _, logits: keras.ops.sqrt(keras.ops.mean(keras.ops.square(logits))), jit_compile=False)
    with pytest.raises(UnsupportedModelError, match="in chunks of rows"):
        plan(model, "90%", 64, measure=False)
    assert plan(model, "100%", "auto", measure=False).chunks == ()


@pytest.mark.parametrize("chunk_loss", ["always", 0, -8, 1.5, True])
def test_refuses_other_numbers_of_rows(chunk_loss: object) -> None:
    with pytest.raises(BatchError, match="chunk_loss"):
        Options(chunk_loss=chunk_loss)


def test_longer_sequences_fit() -> None:
    """Without chunks, the logits of each token take most of what a step does."""
    tokens = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(NUM_WORDS, WIDTH)(tokens)
    model = keras.Model(tokens, keras.layers.Dense(NUM_WORDS)(hidden))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    lengths = Axis("length", minimum=128, maximum=2048, multiple_of=128)
    arguments = {"budget": "12MiB", "axis": lengths, "batch_size": 1, "measure": False, "progress": False}
    found = [
        max_batch_size(model, **arguments, time_limit_s=5, options=Options(costs="flops", chunk_loss=rows)).size
        for rows in (None, 100)
    ]
    assert found[1] > 2 * found[0]


def test_other_functions_need_a_number_of_rows_or_none() -> None:
    model = make_model()
    with pytest.raises(BatchError, match="chunk_loss=512"):
        max_batch_size(model, budget="1GiB", options=Options(chunk_loss="auto"))
    with pytest.raises(SolverError, match="leave chunk_loss out"):
        pareto(model, batch_size=BATCH, options=Options(chunk_loss=64))


def test_functions_of_custom_loops() -> None:
    matrix = tf.Variable(tf.ones((WIDTH, NUM_WORDS)))

    def compute(hidden: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=words, logits=hidden @ matrix)
            loss = tf.reduce_mean(losses)
        return tape.gradient(loss, matrix)

    concrete = tf.function(compute).get_concrete_function(tf.TensorSpec((512, WIDTH)), tf.TensorSpec((512,), tf.int64))
    options = Options(costs="flops", chunk_loss=128)
    rewritten = rewrite_function(concrete, budget="60%", options=options, progress=False)
    assert rewritten.plan.chunks[0].num_chunks == 4
    given = tf.random.normal((512, WIDTH)), tf.range(512, dtype=tf.int64)
    np.testing.assert_allclose(rewritten(*given), concrete(*given), atol=1e-6)


def test_origins_are_those_of_the_traced_step() -> None:
    """The loop belongs to the layer that makes the logits."""
    planned = plan(make_model(), "90%", 64, measure=False)
    loop = next(i for i, node in enumerate(planned.graph.nodes) if "While" in node.op_type)
    assert planned.origins.nodes[loop].layer.startswith("dense")
