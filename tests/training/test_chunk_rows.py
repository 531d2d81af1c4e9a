"""`chunk_rows`: feed-forward blocks and attention train in chunks of rows, with the numbers of stock training."""

from itertools import islice

import keras
import numpy as np
import pytest

from checkmate_tf import Options, rematerialize
from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.planning.chunking import list_chunked
from checkmate_tf.simulator import find_peak_bound
from checkmate_tf.training.traced_model import trace_model
from tests.rewriting.blocks import NUM_WORDS, make_transformer

BATCH, LENGTH = 8, 64


def make_model(policy: str = "float32", *, num_blocks: int = 1, jit_compile: bool = False) -> keras.Model:
    model = make_transformer(length=LENGTH, width=16, num_blocks=num_blocks, dtype=keras.DTypePolicy(policy))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=jit_compile)
    return model


def make_data() -> tuple[np.ndarray, np.ndarray]:
    words = np.random.default_rng(0).integers(0, NUM_WORDS, (2 * BATCH, LENGTH + 1), "int32")
    return words[:, :-1], words[:, 1:]


def fit(model: keras.Model) -> list[float]:
    return model.fit(*make_data(), batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]


def plan(model: keras.Model, budget: str | int, **chunks: object) -> object:
    options = Options(costs="flops", **chunks)
    data = make_data()
    return rematerialize(
        model, batch_size=BATCH, data=data, budget=budget, options=options, progress=False, measure=False
    )


@pytest.mark.parametrize(
    ("policy", "num_blocks", "jit_compile", "rtol"),
    [("float32", 2, False, 1e-5), ("float32", 1, True, 1e-5), ("mixed_bfloat16", 1, False, 1e-2)],
)
def test_trains_as_stock_with_the_rest_rematerialized(
    policy: str, num_blocks: int, jit_compile: bool, rtol: float
) -> None:
    model = make_model(policy, num_blocks=num_blocks, jit_compile=jit_compile)
    planned = plan(model, "60%", chunk_rows=100)
    (chunks,) = planned.chunks
    assert (chunks.what, chunks.num_rows, chunks.chunk_rows) == ("blocks", BATCH * LENGTH, 86)
    assert chunks.num_regions == 2 * num_blocks  # a feed-forward block, and attention before it
    assert f"{2 * num_blocks} blocks are computed in 6 chunks of 86 rows" in str(planned)
    stock = make_model(policy, num_blocks=num_blocks)
    np.testing.assert_allclose(fit(model), fit(stock), rtol=rtol)


def test_auto_takes_chunks_where_no_schedule_fits_without() -> None:
    """The step as it is comes first, and each one after it can do with less."""
    traced = trace_model(make_model(), batch_size=32)
    steps = list(islice(list_chunked(traced.make_graph_step(reserve=False), None, "auto", 0), 3))
    assert len(steps) == 3
    assert steps[0].chunks == ()
    assert all(step.chunks[-1].what == "blocks" for step in steps[1:])
    least = [find_peak_bound(step.graph).peak_bytes for step in steps]
    assert least[1] < 0.9 * least[0]
    assert least == sorted(least, reverse=True)


def test_says_where_there_is_no_block() -> None:
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(8)])
    model.compile("sgd", "mse", jit_compile=False)
    options = Options(costs="flops", chunk_rows=16)
    with pytest.raises(UnsupportedModelError, match="no block"):
        rematerialize(model, batch_size=64, budget="90%", options=options, progress=False, measure=False)
