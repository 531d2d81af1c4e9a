"""A loss in chunks of rows: the numbers of the stock step, and never all logits at once."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.executors.xla.hlo.memory import compile_step, read_xla_memory
from checkmate_tf.profiling.memory import measure_allocator_peak_bytes
from checkmate_tf.rewriting.chunks import find_loss_region, write_chunks
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.tf_private import ConcreteFunction, call_flat
from checkmate_tf.tracing.extraction import extract
from tests.rewriting.losses import (
    BATCH,
    LENGTH,
    LOSSES,
    NUM_WORDS,
    PRODUCTS,
    compute_mean,
    compute_of_probabilities,
    make_data,
    trace_loss,
)

_CLOSE = {"rtol": 1e-12, "atol": 1e-14}


def list_wide(function: ConcreteFunction) -> list[str]:
    """Lists the operations of a step's own graph with as many elements as all logits."""
    num_logits = BATCH * LENGTH * NUM_WORDS
    return [o.name for o in function.graph.get_operations() for t in o.outputs if t.shape.num_elements() == num_logits]


def assert_same_results(function: ConcreteFunction, other: ConcreteFunction) -> None:
    """Compares all results of two steps in 64 bits."""
    mine, theirs = call_flat(function, make_data()), call_flat(other, make_data())
    tf.nest.map_structure(lambda one, two: np.testing.assert_allclose(one, two, **_CLOSE), mine, theirs)


@pytest.mark.parametrize("compute", LOSSES)
def test_loss_gradients_and_metrics_are_those_of_the_stock_step(compute: Callable[..., Any]) -> None:
    """Of 46 rows, chunks of at most 7 are no even parts: the last one begins with rows of the one before it."""
    stock = trace_loss(compute)
    chunked = write_chunks(stock, [find_loss_region(stock)], 7)
    assert chunked.rows[0].overlaps
    assert not list_wide(chunked.function)
    assert_same_results(stock, chunked.function)


@pytest.mark.parametrize("product", PRODUCTS)
def test_any_product_makes_logits(product: str) -> None:
    stock = PRODUCTS[product]()
    chunked = write_chunks(stock, [find_loss_region(stock)], 7)
    assert not list_wide(chunked.function)
    assert_same_results(stock, chunked.function)


@pytest.mark.parametrize("compute", [compute_mean, compute_of_probabilities])
def test_xla_compiles_the_loop(compute: Callable[..., Any]) -> None:
    stock = trace_loss(compute, jit_compile=True)
    assert_same_results(stock, write_chunks(stock, [find_loss_region(stock)], 9).function)


@pytest.mark.parametrize("most_rows", [1, 23, 45, 46])
def test_any_number_of_rows_makes_a_chunk(most_rows: int) -> None:
    stock = trace_loss(compute_mean)
    assert_same_results(stock, write_chunks(stock, [find_loss_region(stock)], most_rows).function)


def test_the_loop_outlives_what_it_was_written_from() -> None:
    """TensorFlow forgets the body of a loop with the graph that it was traced in."""
    stock = trace_loss(compute_mean)
    chunked = write_chunks(stock, [find_loss_region(stock)], 8).function
    expected = call_flat(stock, make_data())
    gc.collect()
    np.testing.assert_allclose(call_flat(chunked, make_data())[0], expected[0], **_CLOSE)


def test_a_frozen_vocabulary_has_no_gradient() -> None:
    """As where LoRA trains beside it."""
    matrix = tf.constant(np.random.default_rng(0).normal(size=(6, NUM_WORDS)))

    def step(hidden: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = compute_mean(hidden @ matrix, words, weights)
        return loss, tape.gradient(loss, hidden)

    stock = tf.function(step).get_concrete_function(*make_data())
    chunked = write_chunks(stock, [find_loss_region(stock)], 23)
    assert_same_results(stock, chunked.function)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_sums_in_16_bits_are_added_up_in_32(dtype: tf.DType) -> None:
    """The gradient of the matrix is as near to that in 64 bits as the stock step's."""
    random = np.random.default_rng(0)
    exact_matrix, hidden = random.normal(size=(16, 64)) / 4, random.normal(size=(1, 512, 16))
    words = tf.constant(random.integers(0, 64, (1, 512)))

    def compute(hidden: tf.Tensor, matrix: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(matrix)
            logits = tf.tensordot(hidden, matrix, axes=1)
            logits = logits if logits.dtype == tf.float64 else tf.cast(logits, tf.float32)
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=words, logits=logits))
        return tape.gradient(loss, matrix)

    given = [tf.cast(hidden, dtype), tf.cast(exact_matrix, dtype)]
    exact = compute(*(tf.cast(one, tf.float64) for one in given)).numpy()
    stock = tf.function(compute).get_concrete_function(*given)
    chunked = write_chunks(stock, [find_loss_region(stock)], 8).function
    errors = [np.abs(tf.cast(call_flat(f, given), tf.float64).numpy() - exact).max() for f in (stock, chunked)]
    assert errors[1] <= 1.5 * errors[0]


def trace_large(num_rows: int, num_words: int, width: int, *, jit_compile: bool = False) -> ConcreteFunction:
    """Traces loss and gradients in 32 bits."""
    matrix = tf.ones([width, num_words])

    def step(hidden: tf.Tensor, words: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([hidden, matrix])
            loss = compute_mean(tf.tensordot(hidden, matrix, axes=1), words, words)
        return loss, tape.gradient(loss, [hidden, matrix])

    specs = tf.TensorSpec((1, num_rows, width)), tf.TensorSpec((1, num_rows), tf.int64)
    return tf.function(step, jit_compile=jit_compile).get_concrete_function(*specs)


@pytest.mark.measures_memory
def test_the_loss_takes_a_small_part_of_its_logits() -> None:
    """By the allocator, and as the simulator predicts: the matrix's gradient twice, and one chunk of the logits.

    That is 12 MiB of 128. Chunks of the pool and kernels that run side by side make it up to 19.
    """
    num_rows, num_words, width = 2048, 16384, 32
    logits_bytes = 4 * num_rows * num_words
    stock = trace_large(num_rows, num_words, width)
    chunked = write_chunks(stock, [find_loss_region(stock)], 128).function
    given = [tf.ones((1, num_rows, width)), tf.ones((1, num_rows), tf.int64)]
    peaks = []
    for function in (stock, chunked):
        call_flat(function, given)
        peaks.append(measure_allocator_peak_bytes(lambda f=function: call_flat(f, given), device="CPU:0"))
    graph = extract(chunked).graph
    predicted_bytes = simulate_stock(graph).peak_bytes - graph.resident_bytes
    assert peaks[0] > logits_bytes
    assert peaks[1] < logits_bytes / 4
    assert 0.5 * peaks[1] < predicted_bytes < 1.25 * peaks[1]


def count_temporary_bytes(function: ConcreteFunction) -> int:
    """Counts what XLA holds beside arguments and results."""

    def step(*given: tf.Tensor) -> Any:
        return call_flat(function, given)

    specs = [tf.TensorSpec(one.shape, one.dtype) for one in function.inputs[:2]]
    return read_xla_memory(compile_step(step, specs)).temporary_bytes


def test_xla_holds_one_chunk_of_the_logits() -> None:
    num_rows, num_words, width = 2048, 16384, 32
    logits_bytes, matrix_bytes = 4 * num_rows * num_words, 4 * width * num_words
    stock = trace_large(num_rows, num_words, width, jit_compile=True)
    chunked = write_chunks(stock, [find_loss_region(stock)], 128).function
    temporary = [count_temporary_bytes(function) for function in (stock, chunked)]
    assert temporary[0] > logits_bytes
    assert temporary[1] < 2 * matrix_bytes + 3 * logits_bytes / 16


def test_refuses_a_step_without_product() -> None:
    function = tf.function(lambda x: tf.reduce_sum(x)).get_concrete_function(tf.TensorSpec((4, 4)))
    with pytest.raises(UnsupportedModelError, match="in chunks of rows: the step has no product"):
        find_loss_region(function)
