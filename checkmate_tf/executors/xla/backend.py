"""Describes a backend of XLA: the form of its ties, and its rules."""

from dataclasses import dataclass, replace
from typing import TypeVar

import tensorflow as tf

from checkmate_tf.executors.xla.order.ties import Ties
from checkmate_tf.executors.xla.rules.rule import Lowering, LoweringRule, Rule

_Kind = TypeVar("_Kind", bound=Rule)


@dataclass(frozen=True)
class Backend:
    """A backend of XLA, with the rules by which steps are written for it.

    Args:
        ties: the class that makes a tensor wait, or keeps it in a buffer.
        rules: rules of one kind apply in this order.
        has_host_memory: values can be copied from the device's memory to the host's.
    """

    name: str
    ties: type[Ties]
    rules: tuple[Rule, ...]
    has_host_memory: bool = False

    def list_rules(self, kind: type[_Kind]) -> tuple[_Kind, ...]:
        """Returns the rules of a kind."""
        return tuple(rule for rule in self.rules if isinstance(rule, kind))

    def without(self, name: str) -> "Backend":
        """Returns the backend without one rule. Raises KeyError if there is no rule of that name."""
        rules = tuple(rule for rule in self.rules if rule.name != name)
        if len(rules) == len(self.rules):
            raise KeyError(name)
        return replace(self, rules=rules)

    def lower(self, op: tf.Operation) -> Lowering | None:
        """Returns the lowering that replaces an operation; None to keep the operation."""
        found = (rule.lower(op) for rule in self.list_rules(LoweringRule) if rule.op_type == op.type)
        return next((lowering for lowering in found if lowering is not None), None)
