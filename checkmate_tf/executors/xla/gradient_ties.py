"""Orders a step that XLA compiles: copies and late reads wait, by data, for gradients.

XLA orders operations by their data alone and merges equal ones, so a copy must differ from its original, and must
not be computable before the backward pass comes to it. Each contiguous run of recomputation is therefore tied by data
to the gradient that its first reader reads: every copy in the run that reads nothing computed in the run reads one of
its inputs through a tie, the smallest, which is a weight or a scalar wherever there is one. All else in the run follows
by its own data. The first such copy waits for the gradient, the others for what the run has computed last: else all
would run at once, and what they yield would be held until it is read. For the same reason, forward nodes that make
something large of nothing, such as random numbers, wait for what was computed before them. A node that the schedule
computes once, but after others that follow it in the stock step, waits as a repeat does.

For XLA:CPU, what backward nodes read of the forward pass is tied too, each node's to the newest gradient that it reads:
it runs whatever it can as soon as its operands exist, and would hold transposed activations, for filter gradients, from
the forward pass on, and the transposed input of the step from its start. So a value that it would write once for the
forward pass and once, transposed otherwise, for the backward pass is written once, and each reader transposes it when
it comes to it. These nodes wait too for products before them that read what is computed again, so that it is not held
for both. Where several runs wait for one gradient, in a step of convolutions, all but the first wait for the newest
gradient of a filter as well: else they would all run at once. XLA:GPU orders for memory, and would fuse less.

The gradients of weights, which nothing but the caller reads, would come last: products and runs of recomputation wait
for those before them in the schedule. The caller in turn gets such a gradient only when all that reads the weights has
run, for XLA writes new weights over the old ones only where it sees that nothing reads these later. Else it copies all
weights at the start of the step.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from checkmate_tf.executors.emission.copies import Copies
from checkmate_tf.executors.emission.ordering import OrderingPolicy
from checkmate_tf.executors.xla.graph import XlaGraph
from checkmate_tf.executors.xla.lowering import find_lowering
from checkmate_tf.executors.xla.ties import Ties, start_ties
from checkmate_tf.graph import Graph
from checkmate_tf.tracing.ops import TensorId

# Inputs of integers that are data, not sizes or axes, which XLA must know to compile.
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
# What reads its operands as they are: a select before it would copy them.
_PRODUCTS = re.compile("MatMul|Einsum")
_ALL_PRODUCTS = re.compile("Conv|MatMul|Einsum")


class GradientTies(OrderingPolicy):
    """Ties runs of recomputation, and what backward nodes read of the forward pass, to gradients."""

    def __init__(self, xla_graph: XlaGraph, copies: Copies, order: Sequence[int]):
        """Prepares for the steps of a schedule.

        Args:
            order: the node of `xla_graph.graph` of each step.
        """
        self.xla_graph = xla_graph
        self.copies = copies
        self.order = order
        self.run_ends = find_runs(xla_graph.graph, order)
        self.split_nodes = frozenset(xla_graph.nodes[index] for index in xla_graph.early)
        self.computed_at: dict[int, int] = {}  # value of the graph -> step
        self.num_ties = 0
        self.run_ties: Ties | None = None  # of the run being written
        self.newest_in_run: TensorId | None = None  # of what it has computed
        self.in_run: set[int] = set()  # operations that are written in that run
        graph = xla_graph.training_graph
        self.transposed = frozenset(tensor for _, value in xla_graph.transposed for tensor in graph.tensors[value])
        self.convolves = _is_convolutional(xla_graph.graph)
        self.awaited: set[TensorId] = set()  # gradients that a run waited for
        self.results: list[TensorId] = []  # gradients that nothing but the caller reads, which nothing waits for yet
        self.newest_result: TensorId | None = None  # of a product
        self.of_repeats: list[TensorId] = []  # of products that read what is computed again, which is held for them

    @property
    def run(self) -> int:
        """The number of the run of recomputation being written; 0 outside of any that is tied."""
        return self.num_ties if self.run_ties is not None else 0

    def is_late(self, step: int) -> bool:
        """Tells whether a step computes its node again, or later than the stock step does."""
        return step in self.run_ends

    def begin_step(self, step: int) -> Mapping[str, str]:
        if not self.is_late(step):
            index = self.order[step]
            newest = self._find_newest_float(self.computed_at) if self._is_source(index) else None
            if newest is not None:
                self._open_run([newest])
            return self._tie_late_reads(index) | self._tie_to_results(index)
        if not self.is_late(step - 1):
            self._start_run(step, self.run_ends[step])
        return {}

    def tie_inputs(self, op: int, name: str, inputs: list[str]) -> list[str]:
        """Returns the inputs of an operation, one of them tied unless one is computed in this run already."""
        if self.run_ties is None or self.copies.grouping.group_of[op] in self.xla_graph.constants:
            return inputs
        tensors = self.copies.ops.inputs[op]
        # Maybe through a view, or from the buffer that is read in its place.
        follows = any(root is not None and root[0] in self.in_run for root in map(self.copies.grouping.root, tensors))
        self.in_run.add(op)
        candidates = [position for position, tensor in enumerate(tensors) if self._may_tie(op, position, tensor)]
        # What XLA would transpose again it has transposed in the forward pass, and would hold until here.
        chosen = [position for position in candidates if self._is_transposed(tensors[position])]
        if not follows and candidates and not chosen:
            chosen = [min(candidates, key=lambda position: (self.copies.size_bytes(tensors[position]), position))]
        if not chosen:
            return inputs
        own = self.run_ties if self.newest_in_run is None else self._start_ties([self.newest_in_run])
        tied = list(inputs)
        for position in chosen:
            tied[position] = own.tie(inputs[position], self.copies.dtype(tensors[position]))
        if own is not self.run_ties:
            self.copies.renamed.update(own.finish())
        return tied

    def _is_transposed(self, tensor: TensorId) -> bool:
        """Tells whether a tensor of before this run is written to a buffer that each of its readers transposes."""
        root = self.copies.grouping.root(tensor)
        return root is not None and root in self.transposed and root[0] not in self.in_run

    def end_step(self, step: int, fresh: Mapping[int, str]) -> None:
        index = self.order[step]
        self.computed_at |= dict.fromkeys(self.xla_graph.graph.nodes[index].outputs, step)
        self._note_result(index)
        if self.run_ties is not None:
            computed = self.xla_graph.graph.nodes[index].outputs
            self.newest_in_run = self._find_newest_float(computed) or self.newest_in_run
        if self.run_ends.get(step, step + 1) == step + 1:
            self._end_run()

    def finish(self) -> None:
        """Has the caller get each large gradient of weights when all that reads these weights has run."""
        graph, copies = self.xla_graph.graph, self.copies
        readers = self._list_readers_of_weights()
        for value in graph.outputs:
            node = graph.nodes[graph.producer[value]]
            result = self._find_newest_float([value]) if node.is_backward else None
            if result is None or copies.size_bytes(result) <= copies.grouping.small_bytes:
                continue
            others = {reader for given in node.inputs for reader in readers.get(given, ())} - {graph.producer[value]}
            found = (self._find_newest_float(graph.nodes[reader].outputs) for reader in sorted(others))
            awaited = [tensor for tensor in found if tensor is not None]
            if awaited:
                own, name = self._start_ties(awaited), copies.tensor(result)
                copies.renamed[name] = own.tie(name, copies.dtype(result))
                copies.renamed.update(own.finish())

    def _list_readers_of_weights(self) -> dict[int, list[int]]:
        """Lists, by the gradient that they read, the backward nodes that read weights."""
        graph, copies = self.xla_graph.graph, self.copies
        readers: dict[int, list[int]] = {}
        for index, node in enumerate(graph.nodes):
            if not node.is_backward or not any(
                copies.grouping.root(tensor) is None and copies.size_bytes(tensor) > copies.grouping.small_bytes
                for tensor in self._list_float_reads(index)
            ):
                continue
            for value in node.inputs:
                if graph.nodes[graph.producer[value]].is_backward:
                    readers.setdefault(value, []).append(index)
        return readers

    def _start_run(self, start: int, end: int) -> None:
        gradient = self._find_gradient(start, end)
        if gradient is None:
            return
        others = [] if self.convolves else self.results
        is_crowded = self.convolves and gradient in self.awaited and self.xla_graph.backend == "cpu"
        if is_crowded and self.newest_result is not None:
            others = [self.newest_result]
        self.awaited.add(gradient)
        self._open_run([gradient, *others])

    def _open_run(self, awaited: Iterable[TensorId]) -> None:
        """Has what is written from now on wait for these tensors, and for what it computes itself."""
        self.in_run = set()
        self.run_ties = self._start_ties(awaited)

    def _end_run(self) -> None:
        if self.run_ties is not None:
            self.copies.renamed.update(self.run_ties.finish())
        self.run_ties = self.newest_in_run = None

    def _is_source(self, index: int) -> bool:
        """Tells whether a forward node makes something large of nothing large, such as random numbers."""
        graph, small_bytes = self.xla_graph.graph, self.copies.grouping.small_bytes
        node = graph.nodes[index]
        read, yielded = ((graph.sizes_bytes[list(v)] > small_bytes).any() for v in (node.inputs, node.outputs))
        return bool(not node.is_backward and yielded and not read)

    def _start_ties(self, gradients: Iterable[TensorId]) -> Ties:
        self.num_ties += 1
        named = [(self.copies.tensor(gradient), self.copies.dtype(gradient)) for gradient in gradients]
        return start_ties(self.xla_graph.backend, f"checkmate_tie_{self.num_ties}", named, self.copies.written)

    def _find_gradient(self, start: int, end: int) -> TensorId | None:
        """Finds the newest tensor of before a run that is read by the first node after the run that reads any such."""
        graph = self.xla_graph.graph
        in_run = {value for step in range(start, end) for value in graph.nodes[self.order[step]].outputs}
        for node in self.order[end:]:
            known = [value for value in graph.nodes[node].inputs if value in self.computed_at and value not in in_run]
            found = self._find_newest_float(known)
            if found is not None:
                return found
        return None

    def _find_newest_float(self, values: Iterable[int]) -> TensorId | None:
        """Finds a tensor of floats of the value computed last."""
        for value in sorted(values, key=lambda value: -self.computed_at[value]):
            for tensor in self.xla_graph.tensors(value):
                if self.copies.dtype(tensor).is_floating and self.copies.size_bytes(tensor):
                    return tensor
        return None

    def _tie_late_reads(self, index: int) -> dict[str, str]:
        """Has a backward node read large results of forward nodes late: not before the newest gradient that it reads.

        Without, XLA computes what the node needs of them alone, such as transposes, as soon as they exist, and holds
        that too. The node waits as well for products before it that read a repeat, which is held for them. Where the
        backward pass begins there is no gradient: nodes wait for what was computed last, the loss, for which XLA would
        hold the logits until after some gradients of weights.
        """
        graph = self.xla_graph.graph
        node = graph.nodes[index]
        is_split = self.xla_graph.nodes[index] in self.split_nodes
        if not node.is_backward or is_split or self.xla_graph.backend == "gpu":
            return {}
        as_it_is = self._list_operands(index)
        gradients = [value for value in node.inputs if graph.nodes[graph.producer[value]].is_backward]
        if not gradients:
            gradients = [value for value in self.computed_at if value not in node.inputs]
        gradient = self._find_newest_float(gradients)
        newest = max((self.computed_at[value] for value in gradients), default=0)
        small_bytes = self.copies.grouping.small_bytes
        old = [
            tensor
            for value in node.inputs
            if value not in gradients
            and value not in as_it_is
            and (self.computed_at[value] <= newest or (self.of_repeats and self.is_late(self.computed_at[value])))
            for tensor in self.xla_graph.tensors(value)
            if self.copies.dtype(tensor).is_floating and self.copies.size_bytes(tensor) > small_bytes
        ]
        old += self._list_given_images(index)
        if gradient is None or not old:
            return {}
        own = self._start_ties([gradient, *self.of_repeats])
        late = {self.copies.tensor(t): own.tie(self.copies.tensor(t), self.copies.dtype(t)) for t in old}
        return late | own.finish()

    def _list_given_images(self, index: int) -> list[TensorId]:
        """Lists what is there from the start of what filter gradients read, and transpose: images, or volumes."""
        copies, small_bytes = self.copies, self.copies.grouping.small_bytes
        is_apart = self.xla_graph.nodes[index] in self.xla_graph.apart
        if "BackpropFilter" not in self.xla_graph.graph.nodes[index].op_type or self._is_product(index) or is_apart:
            return []
        given = (tensor for tensor in self._list_float_reads(index) if copies.grouping.root(tensor) is None)
        return [tensor for tensor in given if copies.size_bytes(tensor) > small_bytes]

    def _list_operands(self, index: int) -> frozenset[int]:
        """Lists the values that a product reads as they are, not through what is fused with it.

        Only products of matrices, and those that compute their operands apart, do.
        """
        if not self._is_product(index) and self.xla_graph.nodes[index] not in self.xla_graph.apart:
            return frozenset()
        graph = self.xla_graph
        node = graph.nodes[index]
        nodes, products = graph.training_graph.graph.nodes, [node, *graph.list_summed(node)]
        read = {v for product in products for v in nodes[product].inputs if (product, v) not in graph.transposed}
        return frozenset(v for v in graph.graph.nodes[index].inputs if graph.values[v] in read)

    def _is_product(self, index: int) -> bool:
        """Tells whether a node multiplies matrices."""
        ops = self.xla_graph.training_graph.get_node_ops(self.xla_graph.nodes[index])
        lowered = [find_lowering(op, self.xla_graph.backend) for op in ops]
        return bool(_PRODUCTS.search(self.xla_graph.graph.nodes[index].op_type)) or any(
            found is not None and found.is_product for found in lowered
        )

    def _tie_to_results(self, index: int) -> dict[str, str]:
        """Has a backward product read its weights late: not before the gradients of weights until here are computed.

        Without, XLA may compute it first, while all that the others read is held.
        """
        node = self.xla_graph.graph.nodes[index]
        if not self.results or not node.is_backward or not _ALL_PRODUCTS.search(node.op_type):
            return {}
        copies = self.copies
        weights = [tensor for tensor in self._list_float_reads(index) if self._is_weight(tensor)]
        if not weights:
            return {}
        operands = weights if "Conv" in node.op_type else weights + self._list_computed(index)
        smallest = min(operands, key=copies.size_bytes)
        name = copies.tensor(smallest)
        own = self._start_ties(self.results)
        tied = {name: own.tie(name, copies.dtype(smallest))}
        copies.renamed.update(own.finish())
        self.results, self.of_repeats = [], []
        return tied

    def _list_float_reads(self, index: int) -> list[TensorId]:
        """Lists the tensors of floats that the operations of a node read."""
        copies = self.copies
        members = copies.grouping.groups[self.xla_graph.nodes[index]].members
        return [t for member in members for t in copies.ops.inputs[member] if copies.dtype(t).is_floating]

    def _list_computed(self, index: int) -> list[TensorId]:
        """Lists the tensors of floats, of a known size, that the products of a node read and that other nodes yield."""
        copies, node = self.copies, self.xla_graph.nodes[index]
        within = {node, *self.xla_graph.fused[node]}
        found = []
        for member in copies.grouping.groups[node].members:
            for tensor in copies.ops.inputs[member] if _ALL_PRODUCTS.search(copies.ops.ops[member].type) else ():
                root = copies.grouping.root(tensor)
                is_computed = root is not None and copies.grouping.group_of[root[0]] not in within
                if is_computed and copies.dtype(tensor).is_floating and copies.size_bytes(tensor):
                    found.append(tensor)
        return found

    def _is_weight(self, tensor: TensorId) -> bool:
        """Tells whether a tensor is there from the start, or is so small that it may be taken for one that is.

        XLA:CPU would transpose a filter at the start of the step, and hold that until the backward pass reads it.
        """
        size_bytes = self.copies.size_bytes(tensor)
        is_given = self.copies.grouping.root(tensor) is None
        return size_bytes > 0 and (is_given or size_bytes <= self.copies.grouping.small_bytes)

    def _note_result(self, index: int) -> None:
        """Remembers a gradient of weights, which nothing else waits for, and what products that read repeats yield."""
        graph = self.xla_graph.graph
        node = graph.nodes[index]
        yielded = (tensor for value in node.outputs for tensor in self.xla_graph.tensors(value))
        floats = [t for t in yielded if self.copies.dtype(t).is_floating and self.copies.size_bytes(t)]
        if not node.is_backward or not floats:
            return
        result = max(floats, key=self.copies.size_bytes)  # A filter's gradient, where that of a bias comes with it.
        is_product = _ALL_PRODUCTS.search(node.op_type)
        if is_product and not self.convolves and any(self.is_late(self.computed_at[value]) for value in node.inputs):
            self.of_repeats.append(result)
        if not set(node.outputs) <= set(graph.outputs):
            return
        if not self.convolves:
            self.results.append(result)
        elif is_product:
            self.newest_result = result
            self.results = [result]

    def _may_tie(self, op: int, position: int, tensor: TensorId) -> bool:
        """Tells whether an input may depend on the gradient: not where XLA needs its value to compile."""
        return self.copies.dtype(tensor).is_floating or _INTEGER_DATA.get(self.copies.ops.ops[op].type) == position


def _is_convolutional(graph: Graph) -> bool:
    """Tells whether most products are convolutions.

    XLA:CPU orders such a step worse if all recomputation, too, waits for the gradients of weights, or any product for
    more of them than the newest.
    """
    convolutions = sum("Conv" in node.op_type for node in graph.nodes)
    return convolutions > sum(bool(_PRODUCTS.search(node.op_type)) for node in graph.nodes)


def find_runs(graph: Graph, order: Sequence[int]) -> dict[int, int]:
    """Finds the end, exclusive, of the contiguous run of late steps that each of these belongs to.

    Late are repeats, and nodes that a schedule computes only after others that follow them in the stock step.
    """
    seen: set[int] = set()
    newest = -1
    lateness = []
    for node in order:
        lateness.append(node in seen or (node < newest and graph.nodes[node].recomputable))
        seen.add(node)
        newest = max(newest, node)
    ends: dict[int, int] = {}
    start = 0
    for is_run, members in groupby(lateness):
        end = start + sum(1 for _ in members)
        if is_run:
            ends |= dict.fromkeys(range(start, end), end)
        start = end
    return ends
