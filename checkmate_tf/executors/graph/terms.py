"""Finds the order in which TensorFlow adds up the terms of a sum, because the result's rounding depends on it.

Grappler makes one AddN of a tree of sums (`AddOpsRewriteStage`), and sorts the inputs of each AddN by name
(`CommonSubgraphElimination`). In a rewritten step, names differ: terms are repeated, or read through views that wait.
"""

from dataclasses import dataclass

from checkmate_tf.tracing.grouping import Grouping
from checkmate_tf.tracing.ops import OpList, TensorId

_SUMS = frozenset({"Add", "AddN", "AddV2"})
# Grappler removes these, and connects their readers to their inputs.
_REMOVED = frozenset({"Identity", "PreventGradient", "Snapshot", "StopGradient"})
# The order of two terms does not matter.
_FEWEST_TERMS = 3


@dataclass(frozen=True, slots=True)
class Term:
    """An input of a sum, or of one in a tree of sums. `rank` is its place among the terms of the op `root`."""

    root: int
    rank: int


def find_ordered_terms(ops: OpList, grouping: Grouping) -> dict[TensorId, Term]:
    """Returns the terms of all sums and trees of sums whose order matters, by (op, position of its input)."""
    readers = ops.map_consumers()
    returned = set(ops.outputs)

    def is_inner(source: TensorId, reader: int) -> bool:
        """Returns whether grappler makes a sum part of the sum that is its only reader."""
        op, output = ops.ops[source[0]], ops.ops[reader].outputs[0]
        return (
            op.type in _SUMS
            and readers.get(source, []) == [reader]
            and source not in returned
            and grouping.group_of[source[0]] == grouping.group_of[reader]
            and op.outputs[0].shape.is_fully_defined()
            and op.outputs[0].shape == output.shape
        )

    def list_terms(reader: int) -> list[TensorId]:
        terms = []
        for position, source in enumerate(ops.inputs[reader]):
            terms += list_terms(source[0]) if is_inner(source, reader) else [(reader, position)]
        return terms

    def name_source(term: TensorId) -> str:
        op, output = ops.inputs[term[0]][term[1]]
        while ops.ops[op].type in _REMOVED:
            op, output = ops.inputs[op][0]
        return f"{ops.ops[op].name}:{output}" if output else ops.ops[op].name

    found: dict[TensorId, Term] = {}
    for root, op in enumerate(ops.ops):
        if op.type not in _SUMS or grouping.group_of[root] < 0 or not op.outputs[0].dtype.is_floating:
            continue
        if any(is_inner((root, 0), reader) for reader in readers.get((root, 0), ()) if ops.ops[reader].type in _SUMS):
            continue
        terms = list_terms(root)
        if len(terms) < _FEWEST_TERMS or len({ops.ops[one].inputs[i].shape for one, i in terms}) > 1:
            continue
        for rank, term in enumerate(sorted(terms, key=name_source)):
            found[term] = Term(root, rank)
    return found
