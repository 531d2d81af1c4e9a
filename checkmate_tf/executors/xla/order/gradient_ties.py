"""Orders a step that XLA compiles: recomputation waits, by data, for gradients.

XLA orders operations by their data alone, and merges equal ones. A copy must therefore differ from its original, and
must not be computable before the backward pass reaches it. Each contiguous run of recomputation is tied to the gradient
that the first reader after it reads. A copy that reads no result of the run reads one input through a tie. That is its
smallest input, such as a weight or a scalar, because a select copies it. A barrier copies nothing in a buffer, but XLA
would compute another copy of a transposed weight behind it. It is therefore over the smallest large input in a buffer,
if there is one. The other copies of the run wait by their own data. The first tied copy waits for the gradient, and
each later one for the newest result of the run. Otherwise, all of them would run at once, and their results would be
held until they are read. A node that the schedule computes once, but after others that follow it in the stock step,
waits like a repeat.

One barrier contains all values that wait for the same gradient, so none of them may be computed from a result of the
barrier, not even by a view. The backend's rules for the order add further waits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from checkmate_tf.executors.emission.copies import Copies
from checkmate_tf.executors.emission.ordering import OrderingPolicy
from checkmate_tf.executors.xla.model.graph import XlaGraph
from checkmate_tf.executors.xla.order.late_lists import write_late_lists
from checkmate_tf.executors.xla.order.order_rule import OrderRule
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.executors.xla.order.ties import Ties
from checkmate_tf.tracing.loops import WHILE_TYPES
from checkmate_tf.tracing.ops import TensorId

# Inputs of integers that are data. Other integers are sizes or axes, which XLA must know at compile time.
_INTEGER_DATA = {
    "GatherV2": 1,
    "OneHot": 0,
    "ResourceGather": 1,
    "SparseSoftmaxCrossEntropyWithLogits": 1,
    "StatelessRandomUniform": 1,
    "StatelessRandomUniformV2": 1,
    "StatelessRandomNormal": 1,
    "StatelessRandomNormalV2": 1,
    "StatelessTruncatedNormal": 1,
    "StatelessTruncatedNormalV2": 1,
}


@dataclass
class _Run:
    """A run of recomputation that is being written.

    Args:
        ties: the ties of operations that are written before the run has a result.
        awaited: the gradients for which the run waits.
        newest: the newest result of the run.
        ops: operations that are written in it.
        first: results for which later readers of the gradients wait.
    """

    ties: Ties
    awaited: tuple[TensorId, ...]
    newest: TensorId | None = None
    ops: set[int] = field(default_factory=set)
    first: list[TensorId] = field(default_factory=list)


class GradientTies(OrderingPolicy):
    """Ties runs of recomputation to gradients, and further operations as the backend's rules ask."""

    def __init__(self, xla_graph: XlaGraph, copies: Copies, order: Sequence[int]):
        """Prepares for a schedule; `order` is the node of `xla_graph.graph` at each position."""
        self.progress = Progress(xla_graph, copies, order)
        self.rules = xla_graph.backend.list_rules(OrderRule)
        self.current: _Run | None = None

    @property
    def run(self) -> int:
        """Returns the number of the tied run of recomputation that is being written; 0 outside of such runs."""
        return self.progress.num_ties if self.current is not None else 0

    def begin_position(self, position: int) -> Mapping[str, str]:
        progress, index = self.progress, self.progress.order[position]
        if progress.is_late(position):
            if not progress.is_late(position - 1):
                self._start_run(position, progress.run_ends[position])
            return {}
        awaited = [tensor for rule in self.rules if (tensor := rule.find_awaited(progress, index)) is not None]
        if awaited:
            self._open_run(awaited)
        late: dict[str, str] = {}
        for rule in self.rules:
            late |= rule.tie_reads(progress, index)
        return late

    def tie_inputs(self, op: int, name: str, inputs: list[str]) -> list[str]:
        """Returns the inputs of an operation, with one of them tied if the run has computed none of them.

        The lists that a loop fills wait for its sequence, too.
        """
        run, copies, xla_graph = self.current, self.progress.copies, self.progress.xla_graph
        if copies.ops.ops[op].type in WHILE_TYPES:
            inputs = write_late_lists(copies.ops.ops[op], name, inputs, copies.written)
        if run is None or copies.grouping.group_of[op] in xla_graph.constants:
            return inputs
        tensors = copies.ops.inputs[op]
        # The input may be a view, or a buffer that replaces it.
        follows = any(root is not None and root[0] in run.ops for root in map(copies.grouping.root, tensors))
        run.ops.add(op)
        candidates = [position for position, tensor in enumerate(tensors) if self._may_tie(op, position, tensor)]
        # Without a tie, XLA would reuse the transposed copy of the forward pass, and hold it until here.
        chosen = [position for position in candidates if self._is_transposed(run, tensors[position])]
        if not follows and candidates and not chosen:
            chosen = [min(candidates, key=lambda position: self._rank(tensors[position]))]
        if not chosen:
            return inputs
        own = run.ties if run.newest is None else self.progress.start_ties([run.newest])
        tied = list(inputs)
        for position in chosen:
            tied[position] = own.tie(inputs[position], copies.dtype(tensors[position]))
        if own is not run.ties:
            copies.renamed.update(own.finish())
        return tied

    def end_position(self, position: int, fresh: Mapping[int, str]) -> None:
        progress = self.progress
        index = progress.order[position]
        progress.note(position)
        for rule in self.rules:
            rule.note(progress, index)
        if self.current is not None:
            computed = progress.graph.nodes[index].outputs
            self.current.newest = progress.find_newest_float(computed) or self.current.newest
            self.current.first += [tensor for rule in self.rules for tensor in rule.list_first(progress, index)]
        if progress.run_ends.get(position, position + 1) == position + 1:
            self._end_run()

    def finish(self) -> None:
        for rule in self.rules:
            rule.finish(self.progress)

    def _start_run(self, start: int, end: int) -> None:
        progress = self.progress
        gradient = self._find_gradient(start, end)
        if gradient is None:
            return
        more = [tensor for rule in self.rules for tensor in rule.list_more(progress, gradient)]
        progress.awaited.add(gradient)
        self._open_run([gradient, *more])

    def _open_run(self, awaited: Iterable[TensorId]) -> None:
        """Starts a run whose operations wait for these tensors, and for the run's own results."""
        gradients = tuple(awaited)
        self.current = _Run(self.progress.start_ties(gradients), gradients)

    def _end_run(self) -> None:
        run, copies = self.current, self.progress.copies
        self.current = None
        if run is None:
            return
        copies.renamed.update(run.ties.finish())
        if not run.first:
            return
        ties = self.progress.start_ties(run.awaited)
        first = {copies.tensor(tensor): copies.dtype(tensor) for tensor in run.first}
        for name, dtype in first.items():
            tied = ties.tie(name, dtype)
            if self.progress.is_convolutional:
                # XLA drops a tensor from a barrier if nothing else reads it, before or behind the barrier. So it is if
                # a convolution yields it in another layout, and XLA transposes it for the barrier.
                copies.renamed[name] = tied
        copies.renamed.update(ties.finish())

    def _find_gradient(self, start: int, end: int) -> TensorId | None:
        """Returns the newest tensor from before a run that the first node after the run with such an input reads.

        If no node has such an input, as loops that read lists do not, it is the newest tensor from before the run. A
        barrier makes XLA write the tensor to a buffer. It is therefore over a large tensor, if there is one, as XLA may
        compute small ones within their readers.
        """
        progress, nodes = self.progress, self.progress.graph.nodes
        takes_any = not progress.xla_graph.backend.ties.is_free
        in_run = {value for position in range(start, end) for value in nodes[progress.order[position]].outputs}
        small: TensorId | None = None
        for node in progress.order[end:]:
            known = [value for value in nodes[node].inputs if value in progress.computed_at and value not in in_run]
            large = [value for value in known if progress.graph.values[value].size_bytes > progress.small_bytes]
            found = progress.find_newest_float(known if takes_any else large)
            if found is not None:
                return found
            small = small or progress.find_newest_float(known)
        return small or progress.find_newest_float(progress.computed_at)

    def _is_transposed(self, run: _Run, tensor: TensorId) -> bool:
        """Returns whether a tensor from before a run is in a buffer that each of its readers transposes."""
        root = self.progress.copies.grouping.root(tensor)
        return root is not None and root in self.progress.xla_graph.transposed_tensors and root[0] not in run.ops

    def _rank(self, tensor: TensorId) -> tuple[bool, int]:
        """Returns a key that is least for the input to tie."""
        copies, xla_graph = self.progress.copies, self.progress.xla_graph
        size_bytes = copies.size_bytes(tensor)
        is_batch = copies.ops.ops[tensor[0]].type == "Placeholder"
        is_held = size_bytes > self.progress.small_bytes and (is_batch or tensor in xla_graph.stored_tensors)
        return xla_graph.backend.ties.is_free and not is_held, size_bytes

    def _may_tie(self, op: int, position: int, tensor: TensorId) -> bool:
        """Returns whether an input may depend on the gradient. It may not if XLA needs its value at compile time."""
        copies = self.progress.copies
        return copies.dtype(tensor).is_floating or _INTEGER_DATA.get(copies.ops.ops[op].type) == position
