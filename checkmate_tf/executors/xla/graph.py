"""Makes the training graph as XLA runs it: what a fusion computes within itself is never stored."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from checkmate_tf.executors.xla.backend import Backend
from checkmate_tf.executors.xla.lowering import Lowering, find_apart, find_lowering
from checkmate_tf.executors.xla.memory import Kernel
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.simulator import find_least_step, simulate_stock
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.tracing.loops import count_stacked_bytes
from checkmate_tf.tracing.ops import TensorId

# A node that no kernel computes and that reads more than this many times its own bytes is not taken into its readers:
# they would have to hold all that it reads, where a fusion of another shape, or none, holds less.
_MOST_READ = 1.5
# A node that computes apart what it transposes may need this share of the stock step's memory: few schedules take less.
_MOST_SHARE = 0.25
_PRODUCTS = re.compile("Conv|MatMul|Einsum")


@dataclass(frozen=True)
class XlaGraph:
    """An XLA graph has the nodes of a training graph whose results XLA writes to buffers.

    Args:
        graph: node i computes `nodes[i]` of the training graph, and within it the nodes that it fuses.
        nodes: of the training graph, [num_nodes].
        values: of the training graph, None for what only an early part yields, [num_values].
        early: nodes of `graph` that are what XLA computes in the forward pass of a backward node, `nodes[i]`.
        fused: node of the training graph -> the nodes that its kernels compute again within themselves.
        materialized: nodes of the training graph that XLA would compute within their readers, or within what only waits
            for them, which must not be.
        constants: nodes of the training graph that XLA computes while it compiles.
        transposed: pairs of a node of the training graph and a value that it reads, which XLA transposes for it alone.
        apart: nodes of the training graph that compute what they transpose before they do.
    """

    graph: Graph
    training_graph: TrainingGraph
    backend: Backend
    nodes: tuple[int, ...]
    values: tuple[int | None, ...]
    early: frozenset[int]
    fused: dict[int, frozenset[int]]
    materialized: frozenset[int]
    constants: frozenset[int]
    transposed: frozenset[tuple[int, int]]
    apart: frozenset[int] = frozenset()

    def tensors(self, value: int) -> tuple[TensorId, ...]:
        """Returns the tensors of the step that a value of `graph` stands for."""
        number = self.values[value]
        return () if number is None else self.training_graph.tensors[number]

    def list_summed(self, node: int) -> list[int]:
        """Lists the products that a node of the training graph sums, with which it is written as one."""
        nodes = self.training_graph.graph.nodes
        return [product for product in sorted(self.fused[node]) if _PRODUCTS.search(nodes[product].op_type)]

    def resize(self, training_graph: TrainingGraph) -> "XlaGraph":
        """Returns the graph for the same training graph at another size, such as that of the batch.

        What kernels hold for themselves is taken to grow as what their nodes read and yield.
        """
        whole, before = training_graph.graph, self.training_graph.graph
        then, now = before.sizes_bytes, whole.sizes_bytes
        growth = [_measure_growth(before, whole, node) for node in self.nodes]
        early = {self.graph.nodes[node].outputs[0]: growth[node] for node in self.early}
        values = tuple(
            replace(value, size_bytes=int(value.size_bytes * early[number]))
            if known is None
            else replace(
                value,
                size_bytes=value.size_bytes * int(now[known]) // int(then[known]) if then[known] else value.size_bytes,
            )
            for number, (value, known) in enumerate(zip(self.graph.values, self.values, strict=True))
        )
        costs = [sum(whole.nodes[n].cost for n in self.list_summed(known) or [known]) for known in self.nodes]
        nodes = tuple(
            replace(
                node,
                cost=0 if number in self.early else costs[number],
                workspace_bytes=int(node.workspace_bytes * growth[number]),
            )
            for number, node in enumerate(self.graph.nodes)
        )
        graph = replace(self.graph, nodes=nodes, values=values, cost_unit=whole.cost_unit)
        return replace(self, graph=graph, training_graph=training_graph)


@dataclass(frozen=True)
class _Unit:
    """A unit becomes a node of the new graph: it is a node of the training graph, or the early part of one."""

    node: int
    is_early: bool
    reads: frozenset[int]
    after: int


def make_xla_graph(
    training_graph: TrainingGraph, stock: Sequence[Kernel], backend: Backend, given_bytes: int | None = None
) -> XlaGraph:
    """Makes the graph in which nodes that XLA computes within their readers are taken into them.

    `stock`: the kernels of the stock step. `given_bytes`: of its arguments and results, if these are not only those of
    the training graph. A node that one of its readers' kernels computes is not read by it: the reader reads the node's
    inputs instead. A node that nothing else reads is left out. Nodes that must run once, or whose results the step
    returns, are kept. What the step returns is written to buffers of its own that XLA holds from the start: it counts
    as resident, as do constants that XLA:CPU holds for what the caller does with gradients.

    What only yields gradients that the step returns runs as soon as it can: the inputs that it alone holds are freed.

    The gradient of a pooling of overlapping windows compares with constants as large as what was pooled, which
    XLA:CPU computes at the very start. It holds them until the last comparison, so that is left in the forward pass:
    such a node becomes two, and only the places of the maxima are held in between.
    """
    whole = training_graph.graph
    facts = _Facts(training_graph, stock, backend)
    reads, fused = _find_reads(facts)
    units = sorted(_list_units(facts, reads), key=lambda unit: (unit.after, unit.node != unit.after, unit.is_early))
    values: list[int | None] = []
    sizes: list[Value] = []
    position: dict[int, int] = {}
    places: dict[int, int] = {}  # training node -> the value that its early part yields
    nodes: list[Node] = []
    returned = frozenset(whole.outputs)
    materialized = (facts.materialized | facts.awaited).intersection(reads)
    if given_bytes is None:
        given_bytes = whole.resident_bytes + int(whole.sizes_bytes[list(returned)].sum())
    for unit in units:
        node = whole.nodes[unit.node]
        inputs = {position[value] for value in unit.reads}
        if unit.is_early:
            places[unit.node] = len(values)
            outputs: tuple[int, ...] = (len(values),)
            values.append(None)
            sizes.append(Value(f"{node.name}/early", facts.early_bytes(unit.node)))
            node = replace(node, name=f"{node.name}/early", cost=0, is_backward=False, recomputable=False)
        else:
            inputs |= {places[unit.node]} if unit.node in places else set()
            outputs = tuple(range(len(values), len(values) + len(node.outputs)))
            position |= dict(zip(node.outputs, outputs, strict=True))
            values += node.outputs
            stored = (facts.stored_bytes(value) for value in node.outputs)
            sizes += [replace(whole.values[v], size_bytes=n) for v, n in zip(node.outputs, stored, strict=True)]
        products = [whole.nodes[product] for product in facts.products.get(unit.node, ())]
        if products:
            node = replace(node, op_type=products[0].op_type, cost=sum(product.cost for product in products))
        takes_over = facts.takes_over(unit.node, unit.reads)
        inplace = not unit.is_early and (node.inplace if takes_over is None else takes_over)
        node = replace(node, inputs=tuple(sorted(inputs)), outputs=outputs, inplace=inplace)
        workspace_bytes = facts.workspace_bytes(
            unit.node, fused[unit.node], is_early=unit.is_early, takes_over=bool(takes_over)
        )
        nodes.append(replace(node, workspace_bytes=workspace_bytes))
    graph = Graph(
        tuple(nodes),
        tuple(sizes),
        tuple(sorted(position[value] for value in returned)),
        given_bytes + facts.count_held_constants_bytes(),
        whole.cost_unit,
        whole.name,
        whole.source,
    )
    early = frozenset(number for number, unit in enumerate(units) if unit.is_early)
    return XlaGraph(
        graph=graph,
        training_graph=training_graph,
        backend=backend,
        nodes=tuple(unit.node for unit in units),
        values=tuple(values),
        early=early,
        fused=fused,
        materialized=materialized,
        constants=facts.constants,
        transposed=facts.transposed,
    )


def set_operands_apart(xla_graph: XlaGraph) -> XlaGraph:
    """Has filter gradients compute what XLA:CPU transposes before it does, which is faster and takes a copy more.

    Those are left as they are that would then need more than a good part of the stock step's memory, and more than any
    node does now: they would raise the least peak that a schedule can have.
    """
    if xla_graph.backend == "gpu":
        return xla_graph
    graph, training_graph = xla_graph.graph, xla_graph.training_graph
    ops, stock_bytes = training_graph.ops, simulate_stock(graph).peak_bytes - graph.resident_bytes
    least_bytes = max(find_least_step(graph).peak_bytes - graph.resident_bytes, _MOST_SHARE * stock_bytes)
    nodes, apart = list(graph.nodes), set()
    for index, node in enumerate(graph.nodes):
        members = training_graph.grouping.groups[xla_graph.nodes[index]].members
        copied = [ops.inputs[member][0] for member in members if find_apart(ops.ops[member])]
        copy_bytes = sum(ops.sizes_bytes[op][position] or 0 for op, position in copied)
        needed_bytes = int(graph.sizes_bytes[[*node.inputs, *node.outputs]].sum()) + node.workspace_bytes
        if copied and needed_bytes + copy_bytes <= least_bytes:
            nodes[index] = replace(node, workspace_bytes=node.workspace_bytes + copy_bytes)
            apart.add(xla_graph.nodes[index])
    return replace(xla_graph, graph=replace(graph, nodes=tuple(nodes)), apart=frozenset(apart))


def _measure_growth(before: Graph, now: Graph, node: int) -> float:
    """Measures how many times the bytes of before a node reads and yields now."""
    values = [*before.nodes[node].inputs, *before.nodes[node].outputs]
    return float(now.sizes_bytes[values].sum() / max(before.sizes_bytes[values].sum(), 1))


def _list_units(facts: "_Facts", reads: dict[int, frozenset[int]]) -> Iterator[_Unit]:
    graph = facts.training_graph.graph
    for node, read in reads.items():
        forward = frozenset(value for value in read if not graph.nodes[graph.producer[value]].is_backward)
        if not forward or not facts.early_bytes(node):
            is_result = facts.only_returns(node) and read
            yield _Unit(node, False, read, max(graph.producer[value] for value in read) if is_result else node)
            continue
        yield _Unit(node, True, forward, max(graph.producer[value] for value in forward))
        yield _Unit(node, False, read - forward, node)


def _find_reads(facts: "_Facts") -> tuple[dict[int, frozenset[int]], dict[int, frozenset[int]]]:
    """Finds the values that each kept node reads, and the nodes that it fuses."""
    graph = facts.training_graph.graph
    needed = {graph.producer[value] for value in graph.outputs}
    reads: dict[int, frozenset[int]] = {}
    fused: dict[int, frozenset[int]] = {}
    for index in reversed(range(len(graph.nodes))):
        if index not in needed and facts.may_fuse(index):
            continue
        read: set[int] = set()
        within: set[int] = set()
        waiting = list(graph.nodes[index].inputs)
        while waiting:
            value = waiting.pop()
            producer = graph.producer[value]
            if producer in within or facts.only_orders(value):
                continue
            if facts.is_fused(producer, index):
                within.add(producer)
                waiting.extend(graph.nodes[producer].inputs)
            else:
                read.add(value)
        needed |= {graph.producer[value] for value in read}
        reads[index] = frozenset(read)
        fused[index] = frozenset(within)
    return reads, fused


class _Facts:
    """These facts are what the kernels of the stock step tell of the training graph's nodes."""

    def __init__(self, training_graph: TrainingGraph, stock: Sequence[Kernel], backend: Backend):
        self.training_graph = training_graph
        self.backend = backend
        self.stock = stock
        self.writers: dict[str, list[int]] = {}
        for number, kernel in enumerate(stock):
            for name in kernel.names:
                self.writers.setdefault(name, []).append(number)
        nodes = range(len(training_graph.graph.nodes))
        found = [[find_lowering(op, backend) for op in training_graph.get_node_ops(node)] for node in nodes]
        lowered = [list(filter(None, each)) for each in found]
        self.is_late = [any(found.is_late for found in each) for each in lowered]
        self.is_lowered = [any(not found.is_late for found in each) for each in lowered]
        self.is_written_over = [any(found.takes_over for found in each) for each in lowered]
        self.products = self._find_within(lowered, are_products=True)
        self.parts = self._find_within(lowered, are_products=False)
        self.names = self._list_names()
        self.kernels = [self._kernels(names) for names in self.names]
        self._add_unnamed_products()
        self.inside = [frozenset(n for k in numbers for n in stock[k].inside) for numbers in self.kernels]
        self.read = [frozenset(n for k in numbers for n in stock[k].reads) for numbers in self.kernels]
        self.readers: list[set[int]] = [set() for _ in stock]
        for number, kernel in enumerate(stock):
            for read in kernel.reads:
                self.readers[read].add(number)
        self.for_sums = self._find_for_sums()
        self.written = [self._find_written(value) for value in range(len(training_graph.graph.values))]
        self.forward = self._forward()
        self.in_nodes = frozenset().union(*self.kernels)
        self.end = max(self.in_nodes, default=-1)
        described = zip(training_graph.graph.nodes, self.kernels, strict=True)
        self.in_products = frozenset().union(*(own for node, own in described if _PRODUCTS.search(node.op_type)))
        self.constants = self._find_constants()
        self.transposed = self._find_transposed()
        self.transposed_values = frozenset(value for _, value in self.transposed)
        self.materialized = self.find_materialized()
        self.awaited = self.find_awaited()

    def _find_within(self, lowered: Sequence[Sequence[Lowering]], *, are_products: bool) -> dict[int, list[int]]:
        """Finds the nodes that are written as one with others that only they read: products, or padded gradients."""
        group_of = self.training_graph.grouping.group_of
        numbers = {op.name: number for number, op in enumerate(self.training_graph.ops.ops)}
        within = {}
        for node, each in enumerate(lowered):
            ops = (op for found in each if found.is_product == are_products for op in found.within)
            others = {group_of[numbers[op.name]] for op in ops} - {node}
            if others:
                within[node] = sorted(others)
        return within

    def _list_names(self) -> list[frozenset[str]]:
        """Lists the names of each node's operations and of views of what it yields, for which XLA may copy."""
        grouping, ops = self.training_graph.grouping, self.training_graph.ops.ops
        names = [{ops[member].name for member in group.members} for group in grouping.groups]
        for (view, _), root in grouping.roots.items():
            if root is not None:
                names[grouping.group_of[root[0]]].add(ops[view].name)
        return [frozenset(each) for each in names]

    def _kernels(self, names: frozenset[str]) -> frozenset[int]:
        """Finds the kernels that write a node's results, and those without a name that they read."""
        return self._with_unnamed({number for name in names for number in self.writers.get(name, ())})

    def _with_unnamed(self, found: set[int]) -> frozenset[int]:
        """Adds to kernels those without a name whose results they read."""
        waiting = list(found)
        while waiting:
            for number in self.stock[waiting.pop()].reads:
                if number not in found and not self.stock[number].names:
                    found.add(number)
                    waiting.append(number)
        return frozenset(found)

    def _add_unnamed_products(self) -> None:
        """Finds the kernels of products that XLA wrote anew and left without a name.

        Such a kernel writes as much as the product, and reads, maybe through others without a name, all that the
        product reads of the step.
        """
        graph, ops = self.training_graph.graph, self.training_graph.ops
        read: list[frozenset[str]] = []  # names of what flows into each kernel since the last kernels with a name
        for kernel in self.stock:
            sources = [(self.stock[number], read[number]) for number in kernel.reads]
            read.append(frozenset().union(*(k.names or k.inside | flows for k, flows in sources)))
        taken = frozenset().union(*self.kernels)
        unnamed = [number for number, kernel in enumerate(self.stock) if not kernel.names and number not in taken]
        for node, described in enumerate(graph.nodes):
            members = self.training_graph.grouping.groups[node].members
            products = [member for member in members if _PRODUCTS.search(ops.ops[member].type)]
            if len(products) != 1 or ops.ops[products[0]].name in self.writers:
                continue
            size_bytes = ops.sizes_bytes[products[0]][0]
            inputs = [self._value_names(value) for value in described.inputs]
            for number in unnamed:
                if self.stock[number].size_bytes == size_bytes and all(names & read[number] for names in inputs):
                    self.kernels[node] |= self._with_unnamed({number})
                    break

    def _value_names(self, value: int) -> frozenset[str]:
        """Lists the names of the operations that yield a value."""
        return frozenset(tensor.op.name for tensor in self.training_graph.get_value_tensors(value))

    def _find_written(self, value: int) -> frozenset[int]:
        """Finds the kernels that write a value: by its name, or as those of its size that others read."""
        graph = self.training_graph.graph
        names = {t.op.name for t in self.training_graph.get_value_tensors(value) if len(t.op.outputs) == 1}
        written = frozenset(number for name in names for number in self.writers.get(name, ()))
        own, size_bytes = self.kernels[graph.producer[value]], int(graph.sizes_bytes[value])
        if written or len(graph.nodes[graph.producer[value]].outputs) > 1:
            return written
        return frozenset(k for k in own if self.stock[k].size_bytes == size_bytes and not self.readers[k] <= own)

    def _find_for_sums(self) -> frozenset[int]:
        """Finds the kernels that only products that are summed read: as they are written, these read others."""
        nodes = {number for node, products in self.products.items() for number in (node, *products)}
        kernels = frozenset().union(*(self.kernels[node] for node in nodes))
        return frozenset(kernel for kernel, readers in enumerate(self.readers) if readers and readers <= kernels)

    def _forward(self) -> frozenset[int]:
        """Finds the kernels that depend on no gradient."""
        described = zip(self.names, self.training_graph.graph.nodes, strict=True)
        backward = {name for names, node in described if node.is_backward for name in names}
        found: set[int] = set()
        for number, kernel in enumerate(self.stock):
            if not kernel.names & backward and found.issuperset(kernel.reads):
                found.add(number)
        return frozenset(found)

    def _find_constants(self) -> frozenset[int]:
        """Finds the nodes that read nothing but constants and that no kernel computes."""
        graph, grouping, ops = self.training_graph.graph, self.training_graph.grouping, self.training_graph.ops
        computed = frozenset().union(*(kernel.inside for kernel in self.stock))
        found: set[int] = set()

        def is_known(op: int) -> bool:
            operation, node = ops.ops[op], grouping.group_of[op]
            if node >= 0 or operation.type == "Const" or op in grouping.constants:
                return node < 0 or node in found
            sources = ops.inputs[op]
            is_pure = bool(sources) and not operation.op_def.is_stateful
            return is_pure and all(is_known(source) for source, _ in sources)

        for node, described in enumerate(graph.nodes):
            members = grouping.groups[node].members
            sources = {source for member in members for source, _ in ops.inputs[member]} - set(members)
            if described.recomputable and computed.isdisjoint(self.names[node]) and all(map(is_known, sources)):
                found.add(node)
        return frozenset(found)

    def _find_transposed(self) -> frozenset[tuple[int, int]]:
        """Finds the backward nodes that read a forward value from kernels that no forward node reads, and the value.

        Only XLA:CPU writes such in the forward pass.
        """
        graph = self.training_graph.graph
        summed = {product for products in self.products.values() for product in products}
        found = set()
        for value, producer in enumerate(graph.producer if self.backend == "cpu" else ()):
            written = frozenset() if graph.nodes[producer].is_backward else self.written[value]
            late = {k for k in written if self.readers[k].isdisjoint(self.forward)}
            for node in graph.users[value] if late and late < written else ():
                read = {k for kernel in self.kernels[node] for k in self.stock[kernel].reads} & written
                if graph.nodes[node].is_backward and read and read <= late and node not in summed:
                    found.add((node, value))
        return frozenset(found)

    def count_held_constants_bytes(self) -> int:
        """Counts constants that XLA:CPU computes first, and holds until the caller needs them for gradients.

        Such are the zeros to which an optimizer adds the gradients of the rows of an embedding.
        """
        if self.backend == "gpu":
            return 0
        late = {k for k, kernel in enumerate(self.stock) if not kernel.is_constant} - self.forward - self.in_nodes
        held = {k for reader in late for k in self.stock[reader].reads if self.stock[k].is_constant} - self.in_nodes
        return sum(self.stock[k].size_bytes for k in held)

    def early_bytes(self, node: int) -> int:
        """Counts what a backward node that starts from large constants holds from the forward pass on; else 0."""
        if self.is_lowered[node] or self.is_late[node]:
            return 0
        small_bytes = self.training_graph.grouping.small_bytes
        early = self.kernels[node] & self.forward
        if not self.training_graph.graph.nodes[node].is_backward or not any(
            self.stock[k].is_constant and self.stock[k].size_bytes > small_bytes for k in early
        ):
            return 0
        read_late = {read for k in self.kernels[node] - early for read in self.stock[k].reads}
        return sum(self.stock[k].size_bytes for k in early & read_late)

    def only_returns(self, node: int) -> bool:
        """Tells whether a backward node yields nothing but what the step returns, such as a filter's gradient."""
        graph = self.training_graph.graph
        described = graph.nodes[node]
        return described.is_backward and described.recomputable and set(described.outputs) <= set(graph.outputs)

    def may_fuse(self, node: int) -> bool:
        """Tells whether a node may be left out where nothing reads it."""
        graph = self.training_graph.graph
        outputs = graph.nodes[node].outputs
        return graph.nodes[node].recomputable and bool(outputs) and not any(value in graph.outputs for value in outputs)

    def only_orders(self, value: int) -> bool:
        """Tells whether a value stands for a control edge from a node without state, which XLA does not heed."""
        graph = self.training_graph.graph
        return not self.training_graph.tensors[value] and graph.nodes[graph.producer[value]].recomputable

    def is_fused(self, node: int, reader: int) -> bool:
        """Tells whether the kernels of `reader` compute `node` themselves.

        They do not where they read what another kernel writes of it, such as the sum that is only divided in them for a
        mean, or random numbers.
        """
        graph = self.training_graph.graph
        if node in self.constants or node in self.products.get(reader, ()) or node in self.parts.get(reader, ()):
            return True
        if not self.may_fuse(node) or node in self.materialized or _PRODUCTS.search(graph.nodes[node].op_type):
            return False
        written = {name for name in self.names[node] if name in self.writers}
        if written:
            kernels = {number for name in written for number in self.writers[name]}
            return written <= self.inside[reader] and kernels.isdisjoint(self.read[reader])
        read_bytes = int(graph.sizes_bytes[list(graph.nodes[node].inputs)].sum())
        output_bytes = sum(int(graph.sizes_bytes[value]) for value in graph.nodes[node].outputs)
        if self.sums_gradients(node):
            return output_bytes <= self.training_graph.grouping.small_bytes
        return bool(self.names[node] & self.inside[reader]) or read_bytes <= _MOST_READ * output_bytes

    def find_materialized(self) -> frozenset[int]:
        """Finds the nodes whose readers must find the results in buffers, or would compute them again from more.

        Such are slices, which read more than they yield; forward sums that the gradient of a convolution reads; and,
        for XLA:CPU, concatenations, which several products may read as a whole; sums of gradients; what convolutions of
        volumes read; and nodes of which XLA would hold more than their results for the backward pass: the random
        numbers of a mask, the product that a ReLU is applied to, beside the ReLU, or what products read transposed,
        once more. XLA:GPU writes such to buffers as it sees fit, in kernels that do more.
        """
        graph, small_bytes = self.training_graph.graph, self.training_graph.grouping.small_bytes
        convolved = {
            value
            for node, described in enumerate(graph.nodes)
            if described.is_backward and "Conv" in described.op_type and not self.is_lowered[node]
            for value in described.inputs
        }
        of_volumes = {v for n in graph.nodes if n.is_backward and "Conv3D" in n.op_type for v in n.inputs}
        found = set()
        for node, described in enumerate(graph.nodes):
            sizes_bytes = graph.sizes_bytes[list(described.outputs)]
            if not self.may_fuse(node) or node in self.constants or (sizes_bytes <= small_bytes).any():
                continue
            is_for_cpu = (
                described.op_type == "ConcatV2"
                or (self.sums_gradients(node) and not self.kernels[node])
                or self.count_held_bytes(node) > _MOST_READ * sizes_bytes.sum()
                or not self.transposed_values.isdisjoint(described.outputs)
                or (not described.is_backward and not of_volumes.isdisjoint(described.outputs))
            )
            if (
                described.op_type == "Slice"
                or (self.is_forward_sum(node) and not convolved.isdisjoint(described.outputs))
                or (self.backend == "cpu" and is_for_cpu)
            ):
                found.add(node)
        return frozenset(found)

    def find_awaited(self) -> frozenset[int]:
        """Finds the backward nodes for whose large results, of floats, others may wait.

        XLA:CPU would compute the element that these look at from what the node reads, and so hold that for longer: it
        could not write the result over it.
        """
        graph, small_bytes = self.training_graph.graph, self.training_graph.grouping.small_bytes
        found = set()
        for node, described in enumerate(graph.nodes if self.backend == "cpu" else ()):
            tensors = [t for value in described.outputs for t in self.training_graph.get_value_tensors(value)]
            if (
                described.is_backward
                and self.may_fuse(node)
                and not _PRODUCTS.search(described.op_type)
                and (graph.sizes_bytes[list(described.outputs)] > small_bytes).any()
                and all(tensor.dtype.is_floating for tensor in tensors)
            ):
                found.add(node)
        return frozenset(found)

    def is_forward_sum(self, node: int) -> bool:
        """Tells whether a forward node makes one large result of several, without a product."""
        graph = self.training_graph.graph
        described = graph.nodes[node]
        if described.is_backward or _PRODUCTS.search(described.op_type):
            return False
        input_bytes, output_bytes = (graph.sizes_bytes[list(v)].sum() for v in (described.inputs, described.outputs))
        return input_bytes > _MOST_READ * output_bytes

    def count_held_bytes(self, node: int) -> int:
        """Counts what XLA holds of a forward node for backward kernels, which may compute the results of it again.

        What is written in the place of a filter gradient or of that of a pooling reads the results themselves.
        """
        graph = self.training_graph.graph
        if graph.nodes[node].is_backward:
            return 0
        own = {number for name in self.names[node] for number in self.writers.get(name, ())}
        late = {number for number in own if not self.readers[number] <= self.kernels[node] | self.forward}
        for value in graph.nodes[node].outputs:
            if any(map(self.reads_stored, graph.users[value])):
                late |= self.written[value]
        return sum(self.stock[k].size_bytes for k in late)

    def reads_stored(self, node: int) -> bool:
        """Tells whether what is written in the place of a backward node reads its inputs from buffers.

        XLA computes a product with one column as a sum, within which it computes what is multiplied.
        """
        filters = [op for op in self.training_graph.get_node_ops(node) if op.type == "Conv2DBackpropFilter"]
        is_sum = any(1 in op.outputs[0].shape[2:] for op in filters)
        return self.is_lowered[node] and self.training_graph.graph.nodes[node].is_backward and not is_sum

    def sums_gradients(self, node: int) -> bool:
        """Tells whether a node adds up the gradients that several readers of a value yield.

        Readers of the sum would each hold all its terms, and those of the sums that are terms of it.
        """
        return self.training_graph.graph.nodes[node].op_type == "AddN" or node in self.parts

    def stored_bytes(self, value: int) -> int:
        """Counts what is stored of a value: XLA may keep it in parts, which its readers put together.

        So it does with the complement of the error function in GELU, in two parts of the size of the whole. And
        XLA:CPU writes a gradient once for each reader, where these want it transposed otherwise; of one that is
        divided, as others wait for it, once for each product.

        What the step returns is written to the caller's buffers; or the caller reads it at once, or at the end. Lists
        of what is held anyway, such as a loop's weights, are stacked.
        """
        graph = self.training_graph.graph
        size_bytes, producer = int(graph.sizes_bytes[value]), graph.producer[value]
        if value in graph.outputs:
            return size_bytes if self.is_read_at_end(value) else 0
        stacked_bytes = sum(count_stacked_bytes(t) or 0 for t in self.training_graph.get_value_tensors(value))
        if stacked_bytes:
            return max(size_bytes, stacked_bytes)
        if producer in self.materialized:
            return size_bytes
        written = self.written[value]
        if graph.nodes[producer].is_backward and self.backend == "cpu":
            forms = {k for k in written - self.for_sums if not self.readers[k] <= self.kernels[producer]}
            if producer in self.awaited:
                forms = {k for k in forms if not self.readers[k].isdisjoint(self.in_products)}
            together = [frozenset(forms)]
        else:
            together = [written.intersection(reader.reads) for reader in self.stock]
        parts_bytes = (sum(self.stock[k].size_bytes for k in parts) for parts in together if len(parts) > 1)
        return max(size_bytes, *parts_bytes, 0)

    def takes_over(self, node: int, reads: Iterable[int]) -> bool | None:
        """Tells whether a node's result is written over one that it reads; None where the stock step cannot show it.

        That is where something reads the operands later, or the result is written over what the node computes itself.
        """
        if self.is_written_over[node]:
            return True
        read = {k for value in reads for k in self.written[value]}
        yielded = {k for value in self.training_graph.graph.nodes[node].outputs for k in self.written[value]}
        is_last = []
        for kernel in (self.stock[k] for k in yielded):
            shared = {k for k in kernel.reads if self.stock[k].buffer == kernel.buffer}
            if shared & read:
                return True
            operands = read.intersection(kernel.reads)
            equal = [k for k in operands if self.stock[k].size_bytes == kernel.size_bytes]
            is_last += [not shared and len(self.readers[k]) == 1 for k in equal]
        return False if any(is_last) else None

    def passing_bytes(self, value: int) -> int:
        """Counts what is held, where a value is computed and where it is read, of one that the caller reads at once."""
        return int(self.training_graph.graph.sizes_bytes[value]) if self.is_passing(value) else 0

    def caller_bytes(self, value: int) -> int:
        """Counts the most that the caller holds at a time of what it makes of a value at once, as metrics do."""
        if not self.is_passing(value):
            return 0
        own = self.kernels[self.training_graph.graph.producer[value]]
        made = frozenset().union(*(self.readers[k] for k in own)) - self.in_nodes
        last = {k: max(self.readers[k], default=k) for k in made if not self.stock[k].is_returned}
        return max((sum(self.stock[k].size_bytes for k in last if k <= now <= last[k]) for now in last), default=0)

    def is_passing(self, value: int) -> bool:
        """Tells whether the caller reads a result of the step as soon as it is there, and does not return it."""
        written = self.written[value]
        is_read = value in self.training_graph.graph.outputs and bool(written)
        return is_read and not any(self.stock[k].is_returned for k in written) and not self.is_read_at_end(value)

    def is_read_at_end(self, value: int) -> bool:
        """Tells whether the caller reads a result when all gradients are computed, as it does to clip them."""
        written = self.written[value]
        last = max((reader for k in written for reader in self.readers[k]), default=-1)
        return last > self.end and not any(self.stock[k].is_returned for k in written)

    def workspace_bytes(self, node: int, fused: frozenset[int], *, is_early: bool, takes_over: bool) -> int:
        """Finds the most that a node's kernels hold at a time, beside what the node reads and yields.

        Where the node is written otherwise than the stock step has it, that is what it reads of the nodes that it
        fuses, if it is a product: a product computes nothing else within itself.
        """
        graph = self.training_graph.graph
        described = graph.nodes[node]
        beside_bytes = sum(map(self.passing_bytes, described.inputs))
        caller_bytes = sum(map(self.caller_bytes, described.outputs))
        if _PRODUCTS.search(described.op_type):  # It transposes what it reads so.
            transposed = self.transposed_values.intersection(described.inputs)
            beside_bytes += sum(int(graph.sizes_bytes[v]) for v in transposed if graph.producer[v] in self.materialized)
        if self.is_lowered[node]:
            products = self.products.get(node) or ([node] if _PRODUCTS.search(described.op_type) else [])
            operands = {value for product in products for value in graph.nodes[product].inputs}
            read_bytes = sum(int(graph.sizes_bytes[v]) for v in operands if graph.producer[v] in fused)
            if self.is_written_over[node]:
                beside_bytes = max(beside_bytes - sum(int(graph.sizes_bytes[v]) for v in described.outputs), 0)
            return read_bytes + beside_bytes + sum(map(self.passing_bytes, described.outputs)) + caller_bytes
        yielded = {t.op.name for value in described.outputs for t in self.training_graph.get_value_tensors(value)}
        mine = self.kernels[node] - self.for_sums
        if self.is_late[node]:
            mine = frozenset(number for number in mine if not self.stock[number].is_constant)
        elif is_early or self.early_bytes(node):
            mine = mine & self.forward if is_early else mine - self.forward
        own = {number for number in mine if self.stock[number].names & yielded}
        own |= {number for value in described.outputs for number in self.written[value] & mine}
        if node in self.materialized and len(own) > len(described.outputs):
            own = set()  # parts, which are put together in a buffer
        kept = {number for number in own if not self.readers[number] <= mine}
        if takes_over:
            mine, own = mine - kept, set()
        held: dict[int, int] = {}
        most = 0
        last_read = {read: k for k in sorted(mine | kept) for read in self.stock[k].reads}
        for number in sorted(mine):
            held[number] = self.stock[number].size_bytes
            most = max(most, sum(held.values()) + self.stock[number].scratch_bytes)
            held = {k: size for k, size in held.items() if k in kept or last_read.get(k, -1) > number}
        own_bytes = sum(self.stock[number].size_bytes for number in own)
        stored_bytes = sum(map(self.stored_bytes, described.outputs))
        return max(most - min(own_bytes, stored_bytes), 0) + beside_bytes + caller_bytes
