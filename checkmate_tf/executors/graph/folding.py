"""Keeps grappler from simplifications that compute large values early, and from adding up terms in another order."""

from collections import defaultdict

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.executors.emission.copies import Copies, name_copy
from checkmate_tf.executors.graph.terms import find_ordered_terms
from checkmate_tf.tracing.grouping import Grouping
from checkmate_tf.tracing.ops import OpList
from checkmate_tf.tracing.semantics import is_stateful_type

# The input that is data, not a shape, of an op that yields a large tensor of constants. For other ops, it is the first.
_VALUE_INPUT = {"Fill": 1}
_UNKNOWN = "checkmate/unknown"
_ASSOCIATIVE = (frozenset({"Add", "AddV2", "Sub"}), frozenset({"Div", "Mul", "RealDiv"}))


class FoldingGuard:
    """Makes operations read some inputs through views.

    Grappler then folds no constants into values that must be computed late, and keeps the stock step's order of terms.
    """

    def __init__(self, copies: Copies):
        self.copies = copies
        self.ops = copies.ops
        self.grouping = copies.grouping
        self.readers = defaultdict(list, self.ops.map_consumers())
        self.known = find_known_ops(self.ops, self.grouping)
        self.terms = find_ordered_terms(self.ops, self.grouping)
        self.has_unknown = False

    def guard_inputs(self, op: int, name: str, inputs: list[str], *, repeat: int, is_backward: bool) -> list[str]:
        """Returns the inputs of copy number `repeat` of an op, some of them hidden from grappler by views."""
        guarded = list(inputs)
        for position in range(len(self.ops.inputs[op])):
            term = self.terms.get((op, position))
            if term is not None:
                view_name = f"{name_copy(self.ops.ops[term.root].name, repeat)}/term_{term.rank:04}"
                view = self.copies.write_opaque_view(view_name, guarded[position], op, position)
                guarded[position] = f"{view.name}:0"
        if self._makes_constant(op):
            position = _VALUE_INPUT.get(self.ops.ops[op].type, 0)
            guarded[position] = self._write_unfolded(f"{name}/value", guarded[position], op, position)
        inner = self._find_reordered_input(op) if is_backward else None
        if inner is not None:
            view = self.copies.write_opaque_view(f"{name}/inner", guarded[inner], op, inner)
            guarded[inner] = f"{view.name}:0"
        return guarded

    def _find_reordered_input(self, member: int) -> int | None:
        """Returns the position of the input x * y of an op (x * y) * c that grappler would change to x * (y * c).

        Constant folding does so (ConstantPushDown), and so does the arithmetic optimizer (MinimizeBroadcasts), if c is
        a constant and no other operation reads x * y. The same holds for sums. Then y * c, an activation times a
        constant, would not wait for the backward pass: it would be computed in the forward pass, and held.
        """
        family = next((types for types in _ASSOCIATIVE if self.ops.ops[member].type in types), None)
        if family is None:
            return None
        constants = [self.ops.ops[source].type == "Const" for source, _ in self.ops.inputs[member]]
        if sum(constants) != 1:
            return None
        position = constants.index(False)
        inner, _ = self.ops.inputs[member][position]
        leaves = [self.ops.ops[source].type for source, _ in self.ops.inputs[inner]]
        if self.ops.ops[inner].type not in family or "Const" in leaves or len(self.readers[inner, 0]) > 1:
            return None
        return position

    def _makes_constant(self, member: int) -> bool:
        """Returns whether an op yields a large tensor of constants, which grappler would compute once and hold."""
        return (
            _makes_large(self.ops, self.grouping, member)
            and bool(self.ops.inputs[member])
            and all(source in self.known for source, _ in self.ops.inputs[member])
        )

    def _write_unfolded(self, name: str, source: str, member: int, position: int) -> str:
        """Writes a constant that TensorFlow knows only when the step runs, so it computes nothing from it before."""
        if not self.has_unknown:
            self.has_unknown = True
            self._write_unknown()
        dtype = self.ops.ops[member].inputs[position].dtype
        definition = NodeDef(name=name, op="SelectV2", input=[f"{_UNKNOWN}:0", source, source])
        definition.attr["T"].type = dtype.as_datatype_enum
        self.copies.written.append(definition)
        return f"{name}:0"

    def _write_unknown(self) -> None:
        """Writes a boolean whose value TensorFlow does not know before a run."""
        scope, _, own_name = _UNKNOWN.partition("/")
        with tf.Graph().as_default() as graph:
            zero = tf.raw_ops.Empty(shape=tf.constant([], tf.int32, name="shape"), dtype=tf.float32, init=True)
            tf.not_equal(zero, 0.0, name=own_name)
        for definition in graph.as_graph_def().node:
            definition.input[:] = [f"{scope}/{source}" for source in definition.input]
            definition.name = f"{scope}/{definition.name}"
            self.copies.written.append(definition)


def find_known_ops(ops: OpList, grouping: Grouping) -> set[int]:
    """Returns constants, and ops with small results from constants alone, which grappler computes before a run."""
    known: set[int] = set()
    for index, op in enumerate(ops.ops):
        sources = [source for source, _ in ops.inputs[index]]
        is_computed = bool(sources) and known.issuperset(sources) and not is_stateful_type(op.type)
        is_computed &= not _makes_large(ops, grouping, index)
        if op.type == "Const" or index in grouping.constants or is_computed:
            known.add(index)
    return known


def _makes_large(ops: OpList, grouping: Grouping, op: int) -> bool:
    return any((size or 0) > grouping.small_bytes for size in ops.sizes_bytes[op])
