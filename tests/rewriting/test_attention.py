"""Attention in chunks of queries: the gradients of the stock step, and never all scores."""

from itertools import pairwise

import keras
import networkx as nx
import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.profiling.memory import measure_allocator_peak_bytes
from checkmate_tf.rewriting.chunks import find_block_regions, find_loss_region, write_chunks
from checkmate_tf.rewriting.rows import Layout
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.tf_private import ConcreteFunction, call_flat, get_loop_body
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.tracing.ops import list_ops
from tests.rewriting.attention import (
    LENGTH,
    NUM_HEADS,
    make_attention,
    make_by_hand,
    make_hidden,
    make_shared_keys,
    trace_attention,
)


def list_scores(function: ConcreteFunction, num_scores: int) -> set[str]:
    """Lists the types of the operations that make as many values as there are scores."""
    operations = function.graph.get_operations()
    made = {op.type for op in operations for tensor in op.outputs if tensor.shape.num_elements() == num_scores}
    return made - {"StatelessWhile", "Reshape"}  # What the loops are given, and return as it was.


def run(model: keras.Model, function: ConcreteFunction) -> list[np.ndarray]:
    """Runs a step from the same seeds of dropout."""
    for variable in model.non_trainable_variables:
        variable.assign(np.ones(variable.shape, variable.dtype))
    return [tf.convert_to_tensor(one).numpy() for one in tf.nest.flatten(call_flat(function, make_hidden(model)))]


def assert_same_results(model: keras.Model, stock: ConcreteFunction, chunked: ConcreteFunction) -> None:
    """Compares loss and gradients, of which that of a bias of keys is zero but for rounding."""
    expected = run(model, stock)
    largest = max(np.abs(one).max() for one in expected[1:])
    for mine, theirs in zip(run(model, chunked), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12 * max(np.abs(theirs).max(), largest / 10))


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("kind", ["multi_head", "grouped", "masked"])
def test_gradients_are_those_of_the_stock_step(kind: str, jit_compile: bool) -> None:
    """Of 24 queries, chunks of 7 are no even parts."""
    model = make_attention(kind)
    stock = trace_attention(model, jit_compile=jit_compile)
    (region,) = find_block_regions(stock)
    assert (region.rows.num_rows, region.rows.tokens_per_row) == (LENGTH, 2)
    chunked = write_chunks(stock, [region], 14)
    assert chunked.rows[0].chunk_rows == 6
    assert not list_scores(chunked.function, 2 * NUM_HEADS * LENGTH**2)
    assert_same_results(model, stock, chunked.function)


def test_the_last_chunk_adds_no_query_twice() -> None:
    """Of 23 queries, the last chunk of 6 begins with one that the chunk before it took."""
    model = make_attention("grouped", length=23, batch_size=3)
    stock = trace_attention(model)
    chunked = write_chunks(stock, find_block_regions(stock), 18)
    assert chunked.rows[0].overlaps
    assert_same_results(model, stock, chunked.function)


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("kind", ["multi_head", "grouped"])
def test_dropout_has_the_random_numbers_of_the_stock_step(kind: str, batch_size: int) -> None:
    """They are made as a whole, and nothing else is."""
    model = make_attention(kind, dropout=0.2, batch_size=batch_size)
    stock = trace_attention(model)
    chunked = write_chunks(stock, find_block_regions(stock), 10).function
    assert list_scores(chunked, batch_size * NUM_HEADS * LENGTH**2) == {"StatelessRandomUniformV2"}
    assert_same_results(model, stock, chunked)


@pytest.mark.parametrize("kind", ["multi_head", "grouped"])
def test_mixed_precision_stays_as_near_as_stock(kind: str) -> None:
    """To the gradients in 64 bits: sums over queries are added up in 32 bits."""
    exact, model = make_attention(kind), make_attention(kind, dtype="mixed_bfloat16")
    model.set_weights(exact.get_weights())
    stock = trace_attention(model)
    chunked = write_chunks(stock, find_block_regions(stock), 8).function
    expected = run(exact, trace_attention(exact))
    errors = [
        max(
            np.abs(mine - theirs).max() / np.abs(expected[1]).max()
            for mine, theirs in zip(found, expected, strict=True)
        )
        for found in (run(model, stock), run(model, chunked))
    ]
    assert errors[1] <= 1.5 * errors[0]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_heads_that_share_keys_are_cut_apart(batch_size: int) -> None:
    """TensorFlow multiplies [heads * queries] and keys at once; the mask shows that queries alone are rows."""
    model = make_shared_keys(batch_size)
    stock = trace_attention(model)
    (region,) = find_block_regions(stock)
    assert region.rows.num_rows == LENGTH
    chunked = write_chunks(stock, [region], 7 * batch_size).function
    assert not list_scores(chunked, batch_size * 4 * LENGTH**2)
    assert_same_results(model, stock, chunked)


def test_each_chunk_makes_its_own_mask() -> None:
    """Of the numbers of queries and keys, so that no mask of all is there."""
    model = make_shared_keys(2)
    stock = trace_attention(model)
    chunked = write_chunks(stock, find_block_regions(stock), 14).function

    def list_masks(function: ConcreteFunction) -> list[str]:
        made = [tensor for op in list_ops(function.graph).ops for tensor in op.outputs]
        return [tensor.name for tensor in made if tensor.dtype == tf.bool and tensor.shape.num_elements() == LENGTH**2]

    assert list_masks(stock)
    assert not list_masks(chunked)


def test_products_of_a_chunk_come_one_after_the_other() -> None:
    """Those of gradients, too, whose operands are there from the beginning."""
    model = make_attention("multi_head")
    stock = trace_attention(model)
    chunked = write_chunks(stock, find_block_regions(stock), 14).function
    for loop in (op for op in chunked.graph.get_operations() if op.type == "StatelessWhile"):
        body = get_loop_body(loop)
        order = nx.DiGraph(
            (source.name, op.name)
            for op in body.get_operations()
            for source in (*(tensor.op for tensor in op.inputs), *op.control_inputs)
        )
        products = [op.name for op in body.get_operations() if op.type == "Einsum"]
        assert products
        assert all(nx.has_path(order, *pair) for pair in pairwise(products))


def _attend_over_all(scores: tf.Tensor) -> tf.Tensor:
    """Takes one softmax over all queries and keys of a head."""
    flat = tf.nn.softmax(tf.reshape(scores, [*scores.shape[:2], -1]))
    return tf.reshape(flat, scores.shape)


def test_entries_are_the_rows_where_queries_depend_on_each_other() -> None:
    model = make_by_hand(_attend_over_all, batch_size=3)
    stock = trace_attention(model)
    (region,) = find_block_regions(stock)
    assert (region.rows.num_rows, region.rows.tokens_per_row) == (3, LENGTH)
    assert {layout for one in region.passes for layout in one.exits.values()} == {Layout("rows")}
    chunked = write_chunks(stock, [region], LENGTH).function
    assert not list_scores(chunked, 3 * NUM_HEADS * LENGTH**2)
    for mine, theirs in zip(run(model, chunked), run(model, stock), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def _attend_with_bias(scores: tf.Tensor) -> tf.Tensor:
    """Adds what depends on the distance to scores that are turned, and turns them back."""
    places = tf.range(LENGTH, dtype=scores.dtype)
    turned = tf.transpose(scores, [0, 2, 3, 1]) - tf.abs(places[:, None] - places[None])[..., None]
    flat = tf.reshape(tf.transpose(turned, [0, 3, 1, 2]), [-1, LENGTH, LENGTH])
    return tf.reshape(tf.nn.softmax(30 * tf.tanh(flat / 30)), scores.shape)


def test_queries_are_followed_to_other_axes() -> None:
    model = make_by_hand(_attend_with_bias)
    stock = trace_attention(model)
    (region,) = find_block_regions(stock)
    assert region.rows.num_rows == LENGTH
    chunked = write_chunks(stock, [region], 10).function
    assert not list_scores(chunked, 2 * NUM_HEADS * LENGTH**2)
    assert_same_results(model, stock, chunked)


def _compare_entries(scores: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.nn.softmax(tf.reshape(scores, [-1])), scores.shape)


def test_finds_nothing_where_all_scores_depend_on_each_other() -> None:
    """The reason is that of the rows that went farthest."""
    stock = trace_attention(make_by_hand(_compare_entries))
    with pytest.raises(UnsupportedModelError, match=r"no block.*rows: .*Softmax.*runs over the rows"):
        find_block_regions(stock)


def test_scores_wider_than_the_vocabulary_are_no_logits() -> None:
    """The loss is that of the widest product with a matrix."""
    model = make_attention("grouped")
    stock = trace_attention(keras.Model(model.input, keras.layers.Dense(LENGTH - 4, dtype="float64")(model.output)))
    region = find_loss_region(stock)
    assert region.ops.ops[region.product].outputs[0].shape[-1] == LENGTH - 4


@pytest.mark.measures_memory
def test_the_peak_falls() -> None:
    """By the allocator, and as the simulator predicts: from three times the scores to a part of them."""
    length = 512
    model = make_attention("grouped", length=length, dtype="float32")
    scores_bytes = 4 * 2 * NUM_HEADS * length**2
    stock = trace_attention(model)
    chunked = write_chunks(stock, find_block_regions(stock), 64).function
    measured, predicted = [], []
    for function in (stock, chunked):
        run(model, function)
        peak_bytes = measure_allocator_peak_bytes(lambda f=function: run(model, f), device="CPU:0")
        measured.append(peak_bytes)
        predicted.append(simulate_stock(extract(function).graph).peak_bytes)
    assert measured[0] > 2 * scores_bytes
    assert measured[1] < scores_bytes
    assert predicted[1] < scores_bytes < predicted[0] / 2
