"""Defines rules. Each responds to one behaviour of XLA.

A rule is a frozen object in a file of its own, and a `Backend` lists its rules. The class of a rule determines the part
that it changes, and is defined beside the code that calls it. `LoweringRule` here and `OptionalLowering` in
`model.graph` change the form in which operations are written. `BufferRule` and `MemoryRule` in `model.buffers` change
the results in buffers and the bytes that XLA holds for a result. `OrderRule` in `order.order_rule` changes which
operations wait.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf


class Rule:
    """A response to one behaviour of XLA. By default, the methods of its class change nothing."""

    @property
    def name(self) -> str:
        """Returns the name of the rule's file."""
        return type(self).__module__.rpartition(".")[2]


@dataclass(frozen=True)
class Lowering:
    """A way to compute an operation's outputs from its inputs at some positions.

    Args:
        build: returns the only output, or a tuple of all outputs.
        is_product: the written operations multiply matrices.
        within: operations that yield the first inputs. The lowering computes them, too, from their inputs at these
            positions.
        is_late: XLA compiles it to the same kernels as the operation, but runs none of them before its inputs exist.
        takes_over: its largest output is written over its first input if nothing reads that later.
    """

    inputs: tuple[int, ...]
    build: Callable[..., Any]
    is_product: bool = False
    is_late: bool = False
    takes_over: bool = False
    within: tuple[tf.Operation, ...] = ()


class LoweringRule(Rule):
    """Writes operations of one type in another form than TensorFlow's."""

    op_type: ClassVar[str]

    def lower(self, op: tf.Operation) -> Lowering | None:
        """Returns the lowering that replaces an operation of this type; None to keep the operation."""
        return None
