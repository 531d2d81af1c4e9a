"""What belongs to a region, and the reasons for which there is none."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.rewriting.chunks import find_loss_region
from tests.rewriting.losses import compute_mean, compute_of_probabilities, compute_with_metrics, trace_loss


def list_exits(compute: Callable[..., Any]) -> list[tuple[str, str]]:
    region = find_loss_region(trace_loss(compute))
    return sorted((region.ops.ops[op].type, layout.kind) for (op, _), layout in region.exits.items())


def test_a_region_ends_in_narrow_rows_and_sums() -> None:
    assert list_exits(compute_mean) == [
        ("BiasAddGrad", "sum"),
        ("MatMul", "rows"),
        ("MatMul", "sum"),
        ("SparseSoftmaxCrossEntropyWithLogits", "rows"),
    ]


def test_metrics_belong_to_it() -> None:
    kinds = {kind for kind, _ in list_exits(compute_with_metrics)}
    assert {"ArgMax", "InTopKV2"} <= kinds


def test_narrow_operations_between_wide_ones_belong_to_it() -> None:
    """The gradient of a softmax subtracts a sum over each row."""
    region = find_loss_region(trace_loss(compute_of_probabilities))
    sums = [op for op in map(region.ops.ops.__getitem__, region.members) if op.type == "Sum"]
    assert sums
    assert all(op.outputs[0].shape.num_elements() == region.rows.num_rows for op in sums)


def _return_logits(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> Any:
    return [compute_mean(logits, words, weights), logits]


def _multiply_by_other_rows(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> Any:
    return compute_mean(logits * tf.cumsum(tf.reduce_max(logits, axis=-1), axis=1)[..., None], words, weights)


def _take_root_twice(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> Any:
    return tf.sqrt(compute_mean(logits - tf.sqrt(compute_mean(logits, words, weights)), words, weights))


def _take_every_other_row(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> Any:
    return compute_mean(logits[:, ::2], words[:, ::2], weights)


def _take_two_windows(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> Any:
    return compute_mean(logits[:, :-1], words[:, 1:], weights) + compute_mean(logits[:, 1:], words[:, 1:], weights)


def _compare_rows(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> Any:
    return tf.reduce_mean(tf.nn.softmax(logits, axis=1)[..., 0])


def _repeat_by_length(logits: tf.Tensor, words: tf.Tensor, weights: tf.Tensor) -> Any:
    return compute_mean(logits + weights[:1, :, None], words, weights)


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (_return_logits, "the step returns"),
        (_take_every_other_row, "StridedSlice.*at a distance"),
        (_take_two_windows, "other rows than other slices"),
        (_take_root_twice, "would be computed . times"),
        (_multiply_by_other_rows, "would be computed . times"),
        (_compare_rows, "Transpose"),
        (_repeat_by_length, "for a part of the rows"),
    ],
)
def test_says_why_there_is_none(compute: Callable[..., Any], reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        find_loss_region(trace_loss(compute))
