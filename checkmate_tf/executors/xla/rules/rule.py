"""Defines rules: each answers to one thing that XLA does.

A rule is a frozen object in a file of its own, and a `Backend` lists those that hold on it. Its kind says what it
changes, and stands beside the code that asks it: how operations are written (`LoweringRule` here, `OptionalLowering` in
`model.graph`), which results are written to buffers, how many bytes XLA holds for a result (`BufferRule` and
`MemoryRule` in `model.buffers`), or which operations wait (`OrderRule` in `order.order_rule`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf


class Rule:
    """One thing that XLA does, and the change that answers to it; the hooks of its kind change nothing by default."""

    @property
    def name(self) -> str:
        """The name of the rule's file."""
        return type(self).__module__.rpartition(".")[2]


@dataclass(frozen=True)
class Lowering:
    """A lowering computes an operation's outputs from the inputs at some positions.

    Args:
        build: makes the only output, or a tuple of all.
        is_product: the operations written multiply matrices.
        within: operations that yield the first inputs, and are computed within what is written, from their inputs at
            these positions.
        is_late: it is compiled to what the operation would be, but that nothing of it is computed before its inputs.
        takes_over: its largest output is written over its first input, where nothing reads that later.
    """

    inputs: tuple[int, ...]
    build: Callable[..., Any]
    is_product: bool = False
    is_late: bool = False
    takes_over: bool = False
    within: tuple[tf.Operation, ...] = ()


class LoweringRule(Rule):
    """Writes operations of one type otherwise than TensorFlow lowers them."""

    op_type: ClassVar[str]

    def lower(self, op: tf.Operation) -> Lowering | None:
        """Returns what to write in the place of an operation of this type; None to leave it."""
        return None
