"""PyTorch's joint graph of forward and backward as a training graph, and its partitions as schedules.

`torch.compile` traces a step into one joint graph (AOTAutograd), chooses which tensors the forward part keeps
(`min_cut_rematerialization_partition`), and recomputes in the backward part what it does not keep. With an activation
memory budget below 1 it solves a knapsack problem over operations that it may recompute.
"""

import copy
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from functorch.compile import aot_function, nop
from torch import fx
from torch._functorch import config
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomRuntimeEstimator
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule
from experiments.peers.torch_models import Step

# What one node costs, of the graph's unit.
Cost = Callable[[fx.Node], int]
# Of the roofline.
_OPERATIONS_PER_NS, _BYTES_PER_NS = 20_000, 1_500
# These share the storage of what they read, although their schema does not say so.
_MORE_VIEWS = (torch.ops.aten._unsafe_view.default, torch.ops.aten._reshape_alias.default)


@dataclass(frozen=True)
class Joint:
    """The joint graph of a step as PyTorch hands it to a partitioner; `num_outputs` of the forward part."""

    module: fx.GraphModule
    num_outputs: int


def trace(step: Step) -> Joint:
    """Traces the step by AOTAutograd."""
    found: list[Joint] = []

    def keep(module: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        module.graph.eliminate_dead_code()
        module.graph = fx_graph_cse(module.graph)
        found.append(Joint(copy.deepcopy(module), num_fwd_outputs))
        return min_cut_rematerialization_partition(module, inputs, num_fwd_outputs=num_fwd_outputs, **options)

    with step.mode:
        aot_function(step.loss, fw_compiler=nop, bw_compiler=nop, partition_fn=keep)(*step.arguments)
    return found[0]


@dataclass(frozen=True)
class Partition:
    """What the partitioner makes of a joint graph: names of operations in the order of the two parts.

    `saved` are names of what the forward part keeps for the backward part, parameters left out.
    """

    forward: tuple[str, ...]
    backward: tuple[str, ...]
    saved: tuple[str, ...]


def partition(joint: Joint, budget: float, solver: str, cost: Cost | None) -> Partition:
    """Partitions with an activation memory budget from 0 to 1.

    Args:
        solver: "dp", "greedy" or "ilp".
        cost: what the solver minimizes; None for PyTorch's own count of operations, where all but products are free.
    """
    estimator: Any = "flops" if cost is None else _Estimator(cost)
    with config.patch(
        activation_memory_budget=budget,
        activation_memory_budget_solver=solver,
        activation_memory_budget_runtime_estimator=estimator,
    ):
        forward, backward = min_cut_rematerialization_partition(
            copy.deepcopy(joint.module), (), num_fwd_outputs=joint.num_outputs
        )
    (output,) = forward.graph.find_nodes(op="output")
    kept = [node.name for node in output.args[0][joint.num_outputs :] if node.op == "call_function"]
    return Partition(_operations(forward), _operations(backward), tuple(kept))


class _Estimator(CustomRuntimeEstimator):
    def __init__(self, cost: Cost):
        self.cost = cost

    def __call__(self, node: fx.Node) -> float:
        return float(max(self.cost(node), 1))

    def uuid(self) -> None:
        """Nothing is cached by it."""


def _operations(module: fx.GraphModule) -> tuple[str, ...]:
    return tuple(node.name for node in module.graph.nodes if node.op == "call_function")


@dataclass
class JointGraph:
    """The training graph of a joint graph in an order of its operations.

    Views and the elements of a tuple are no nodes: who reads them reads the storage. `nodes` gives the index of each
    operation that is a node, `values` the storages of each operation, be they its own or those that it views, and
    `results` those of the forward part's results.
    """

    graph: Graph
    nodes: dict[str, int]
    values: dict[str, tuple[int, ...]]
    results: tuple[int, ...]


def convert(joint: Joint, order: Sequence[str], cost: Cost) -> JointGraph:
    """Converts a joint graph whose operations run in this order. Sizes are bytes, parameters and batch left out."""
    by_name = {node.name: node for node in joint.module.graph.nodes}
    (output,) = joint.module.graph.find_nodes(op="output")
    results = [node for node in output.args[0] if isinstance(node, fx.Node)]
    forward = _needed_for(results[: joint.num_outputs])
    nodes: list[Node] = []
    values: list[Value] = []
    indices: dict[str, int] = {}
    storages: dict[str, tuple[int, ...]] = {}
    for name in order:
        node = by_name[name]
        read = [storages.get(each.name, ()) for each in node.all_input_nodes]
        if node.target is operator.getitem:
            storages[name] = read[0][node.args[1] : node.args[1] + 1] if len(read[0]) > 1 else read[0]
            continue
        if _is_view(node):
            storages[name] = read[0]
            continue
        outputs = tuple(range(len(values), len(values) + len(_sizes(node))))
        values += [Value(f"{name}:{index}", size) for index, size in enumerate(_sizes(node))]
        storages[name], indices[name] = outputs, len(nodes)
        inputs = tuple(sorted({value for stored in read for value in stored}))
        nodes.append(Node(name, str(node.target), inputs, outputs, cost(node), is_backward=name not in forward))
    kept = {value for node in results for value in storages.get(node.name, ())}
    graph = Graph(tuple(nodes), tuple(values), tuple(sorted(kept)))
    of_forward = [value for node in results[: joint.num_outputs] for value in storages.get(node.name, ())]
    return JointGraph(graph, indices, storages, tuple(of_forward))


def schedule_of(joint: JointGraph, found: Partition) -> Schedule:
    """The partition as a schedule: the forward part and then the backward part, recomputations included."""
    names = (*found.forward, *found.backward)
    return Schedule(tuple(joint.nodes[name] for name in names if name in joint.nodes))


def order_of(found: Partition) -> list[str]:
    """All operations in the order in which the partition first runs them."""
    return list(dict.fromkeys([*found.forward, *found.backward]))


def saved_bytes(joint: JointGraph, found: Partition) -> int:
    """Bytes of the storages that the forward part keeps."""
    kept = {value for name in found.saved for value in joint.values.get(name, ())}
    return sum(joint.graph.values[value].size_bytes for value in kept)


def held_bytes(joint: JointGraph, schedule: Schedule) -> int:
    """Bytes that a schedule holds for later where the forward part's results are there."""
    end = 1 + max(schedule.order.index(joint.graph.producer[value]) for value in joint.results)
    held: set[int] = set()
    for node in reversed(schedule.order[end:]):
        held -= set(joint.graph.nodes[node].outputs)
        held |= set(joint.graph.nodes[node].inputs)
    return sum(joint.graph.values[value].size_bytes for value in held)


def count_operations(node: fx.Node) -> int:
    """Floating-point operations as PyTorch counts them: those of products and convolutions."""

    def example(argument: Any) -> Any:
        return argument.meta["val"] if isinstance(argument, fx.Node) else argument

    arguments, named = tree_map(example, (node.args, node.kwargs))
    with FlopCounterMode(display=False) as mode:
        node.target(*arguments, **named)
    return int(mode.get_total_flops())


def bytes_moved(node: fx.Node) -> int:
    """Bytes that an operation reads and writes."""
    return sum(map(sum, map(_sizes, node.all_input_nodes))) + sum(_sizes(node))


def roofline_ns(node: fx.Node) -> int:
    """Nanoseconds of an operation on a GPU of about 2021: of its products or of its memory, whichever takes longer."""
    return max(count_operations(node) // _OPERATIONS_PER_NS, bytes_moved(node) // _BYTES_PER_NS, 1)


def _needed_for(nodes: Iterable[fx.Node]) -> set[str]:
    found: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.name not in found:
            found.add(node.name)
            waiting.extend(node.all_input_nodes)
    return found


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or node.target in _MORE_VIEWS:
        return schema is not None
    alias = [argument.alias_info for argument in schema.arguments]
    return any(info is not None and not info.is_write for info in alias) and bool(node.all_input_nodes)


def _sizes(node: fx.Node) -> list[int]:
    """Bytes of each tensor that an operation yields."""
    value = node.meta.get("val")
    tensors = value if isinstance(value, (tuple, list)) else [value]
    return [each.numel() * each.element_size() if isinstance(each, torch.Tensor) else 0 for each in tensors]
