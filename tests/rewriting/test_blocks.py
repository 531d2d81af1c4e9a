"""Feed-forward blocks in chunks of rows: the gradients of the stock step, and never all of a wide activation."""

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.profiling.memory import measure_allocator_peak_bytes
from checkmate_tf.rewriting.chunks import find_block_regions, write_chunks
from checkmate_tf.rewriting.rows import SUM, Layout
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.tf_private import call_flat
from checkmate_tf.tracing.extraction import extract
from tests.rewriting.blocks import LENGTH, WIDTH, make_tokens, make_transformer, trace_blocks


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_gradients_are_those_of_the_stock_step(is_gated: bool, jit_compile: bool) -> None:
    """Of 96 rows, chunks of at most 13 are no even parts."""
    model = make_transformer(is_gated=is_gated)
    stock = trace_blocks(model, jit_compile=jit_compile)
    regions = find_block_regions(stock)
    assert len(regions[0].passes) == 2
    chunked = write_chunks(stock, regions, 13).function
    wide = 2 * LENGTH * 16 * WIDTH
    assert not [o.name for o in chunked.graph.get_operations() for t in o.outputs if t.shape.num_elements() == wide]
    mine, theirs = call_flat(chunked, make_tokens()), call_flat(stock, make_tokens())
    for one, two in zip(tf.nest.flatten(mine), tf.nest.flatten(theirs), strict=True):
        two = tf.convert_to_tensor(two).numpy()
        np.testing.assert_allclose(tf.convert_to_tensor(one), two, atol=1e-12 * max(np.abs(two).max(), 1e-3))


def test_the_backward_pass_computes_wide_values_again() -> None:
    """It reads the narrow gradient of the block's result, and sums the gradients of its weights over chunks."""
    region = find_block_regions(trace_blocks(make_transformer()))[0]
    forward, backward = region.passes
    product = region.product
    assert product in forward.members
    assert product in backward.members
    assert set(forward.exits.values()) == {Layout("rows")}
    assert list(backward.exits.values()).count(SUM) >= 3


@pytest.mark.measures_memory
def test_the_peak_falls() -> None:
    """By the allocator, and as the simulator predicts."""
    length, width, rows = 128, 32, 32
    stock = trace_blocks(make_transformer(length=length, width=width, dtype="float32"), batch_size=rows)
    chunked = write_chunks(stock, find_block_regions(stock), 256).function
    given = make_tokens(length, rows)
    measured, predicted = [], []
    for function in (stock, chunked):
        call_flat(function, given)
        measured.append(measure_allocator_peak_bytes(lambda f=function: call_flat(f, given), device="CPU:0"))
        predicted.append(simulate_stock(extract(function).graph).peak_bytes)
    assert measured[1] < 0.8 * measured[0]
    assert predicted[1] < 0.8 * predicted[0]


def test_experts_are_computed_for_a_chunk_of_tokens() -> None:
    """Each token goes through all experts, whose results [experts, tokens, width] are added up by weights."""
    num_tokens, num_experts, width = 30, 3, 4
    random = tf.random.Generator.from_seed(0)
    shapes = ([num_tokens, width], [width, num_experts], [num_experts, width, 40], [num_experts, 40, width])
    given = [random.normal(shape, dtype=tf.float64) for shape in shapes]

    def step(*given: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        hidden, router, first, second = given
        with tf.GradientTape() as tape:
            tape.watch(given)
            wide = tf.nn.gelu(tf.einsum("ab,cbd->cad", hidden, first))
            weights = tf.transpose(tf.nn.softmax(hidden @ router))[..., None]
            mixed = tf.reduce_sum(weights * tf.einsum("cad,cdb->cab", wide, second), axis=0)
            loss = tf.reduce_sum(mixed**2)
        return loss, tape.gradient(loss, given)

    stock = tf.function(step).get_concrete_function(*given)
    (region,) = find_block_regions(stock)
    assert region.rows.num_rows == num_tokens
    chunked = write_chunks(stock, [region], 7).function
    wide = num_tokens * num_experts * 40
    assert not [o.name for o in chunked.graph.get_operations() for t in o.outputs if t.shape.num_elements() == wide]
    for one, two in zip(*(tf.nest.flatten(call_flat(f, given)) for f in (chunked, stock)), strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-12 * np.abs(two).max())
