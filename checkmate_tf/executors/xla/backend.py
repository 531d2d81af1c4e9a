"""A backend of XLA: how a tensor waits there, and the rules that hold there."""

from dataclasses import dataclass, replace
from typing import TypeVar

import tensorflow as tf

from checkmate_tf.executors.xla.order.ties import Ties
from checkmate_tf.executors.xla.rules.rule import Lowering, LoweringRule, Rule

_Kind = TypeVar("_Kind", bound=Rule)


@dataclass(frozen=True)
class Backend:
    """A backend is a strategy: it lists the rules by which a step is written for it.

    Args:
        ties: how a tensor is made to wait, or kept in a buffer.
        rules: those of a kind are asked in this order.
        has_host_memory: values can be copied to memory that is not the device's.
    """

    name: str
    ties: type[Ties]
    rules: tuple[Rule, ...]
    has_host_memory: bool = False

    def list_rules(self, kind: type[_Kind]) -> tuple[_Kind, ...]:
        """Returns the rules of a kind."""
        return tuple(rule for rule in self.rules if isinstance(rule, kind))

    def without(self, name: str) -> "Backend":
        """Returns the backend without one rule.

        Raises KeyError where it has none of that name.
        """
        rules = tuple(rule for rule in self.rules if rule.name != name)
        if len(rules) == len(self.rules):
            raise KeyError(name)
        return replace(self, rules=rules)

    def lower(self, op: tf.Operation) -> Lowering | None:
        """Returns what to write in the place of an operation; None to leave it."""
        found = (rule.lower(op) for rule in self.list_rules(LoweringRule) if rule.op_type == op.type)
        return next((lowering for lowering in found if lowering is not None), None)
