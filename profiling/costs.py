"""Defines cost models, each of which finds the cost of every node of a training graph, behind one interface."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from checkmate_tf.errors import ProfileError
from checkmate_tf.graph import Graph
from checkmate_tf.profiling.devices import DEVICES, find_profiled_costs, load_profile
from checkmate_tf.profiling.profiler import profile_graph
from checkmate_tf.profiling.roofline import Roofline, calibrate_roofline
from checkmate_tf.tracing.analytic_costs import count_op_flops
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.user_warnings import warn

CostModelName = Literal["auto", "measured", "flops", "roofline", "unit"]
COST_MODEL_NAMES: tuple[str, ...] = get_args(CostModelName)


@dataclass(frozen=True)
class NodeCosts:
    """Costs in `unit`, int [num_nodes], and `workspace_bytes`, [num_nodes], or None to leave the graph's workspace."""

    unit: str
    costs: tuple[int, ...]
    workspace_bytes: tuple[int, ...] | None = None


class CostModel(ABC):
    """A source of costs. Subclasses find the cost of every node of a training graph.

    Example:

    >>> class TwoEach(CostModel):
    ...     def find_node_costs(self, training_graph):
    ...         return NodeCosts("node", (2,) * len(training_graph.graph.nodes))
    >>> from checkmate_tf import Options
    >>> isinstance(Options(costs=TwoEach()).costs, CostModel)
    True
    """

    @abstractmethod
    def find_node_costs(self, training_graph: TrainingGraph) -> NodeCosts:
        """Returns the cost of every node."""


@dataclass(frozen=True)
class UnitCosts(CostModel):
    """Every node costs 1."""

    def find_node_costs(self, training_graph: TrainingGraph) -> NodeCosts:
        return NodeCosts("node", (1,) * len(training_graph.graph.nodes))


@dataclass(frozen=True)
class FlopsCosts(CostModel):
    """A node costs its floating-point operations. They follow from shapes alone, and are the same on every device."""

    def find_node_costs(self, training_graph: TrainingGraph) -> NodeCosts:
        nodes = range(len(training_graph.graph.nodes))
        return NodeCosts("flop", tuple(sum(map(count_op_flops, training_graph.get_node_ops(node))) for node in nodes))


@dataclass(frozen=True)
class RooflineCosts(CostModel):
    """A node costs the longer of computing and moving its data, at rates measured on the device (cached).

    Args:
        compiled: XLA compiles the step, so that a node starts one kernel rather than one for each operation.
    """

    cache_path: Path | str | None = None
    device: str | None = None
    compiled: bool = False

    def find_node_costs(self, training_graph: TrainingGraph) -> NodeCosts:
        roofline = calibrate_roofline(cache_path=self.cache_path, device=self.device)
        return NodeCosts("ns", tuple(estimate_roofline_costs(training_graph, roofline, compiled=self.compiled)))


@dataclass(frozen=True)
class MeasuredCosts(CostModel):
    """Times each distinct node on the device (Checkmate, section 4.10), and measures its workspace.

    Nodes that cannot run alone get the estimate of a roofline calibrated on the device, and a warning names them.

    Args:
        progress: whether to show a bar on standard error, if that is a terminal.
        on_node: called, instead of a bar, with the number of nodes timed and their total.
    """

    cache_path: Path | str | None = None
    device: str | None = None
    progress: bool = True
    on_node: Callable[[int, int], None] | None = None

    def make_roofline(self, *, compiled: bool) -> RooflineCosts:
        """Returns the cost model for nodes that cannot be timed, on the same device."""
        return RooflineCosts(self.cache_path, self.device, compiled)

    def find_node_costs(self, training_graph: TrainingGraph) -> NodeCosts:
        profile = profile_graph(
            training_graph,
            cache_path=self.cache_path,
            device=self.device,
            progress=self.progress,
            on_node=self.on_node,
        )
        costs = [0 if entry is None else round(entry.cost_ns) for entry in profile.measurements]
        if profile.reasons:
            _warn_of_estimates(training_graph.graph, profile.reasons)
            estimates = self.make_roofline(compiled=False).find_node_costs(training_graph).costs
            costs = [estimates[node] if node in profile.reasons else cost for node, cost in enumerate(costs)]
        measured = [entry.workspace_bytes if entry else None for entry in profile.measurements]
        workspace = tuple(
            # The output of a node that runs alone cannot lie in an input's buffer.
            max(node.workspace_bytes, needed or 0) if node.inplace or needed is None else needed
            for node, needed in zip(training_graph.graph.nodes, measured, strict=True)
        )
        return NodeCosts("ns", tuple(costs), workspace)


@dataclass(frozen=True)
class DeviceCosts(CostModel):
    """A node costs its estimated time on a device that is not here, by a roofline of the manufacturer's figures.

    Args:
        device: a name in `devices.DEVICES`.
        compiled: XLA compiles the step, so that a node starts one kernel rather than one for each operation.
    """

    device: str
    compiled: bool = False

    def find_node_costs(self, training_graph: TrainingGraph) -> NodeCosts:
        figures, nodes = DEVICES[self.device], range(len(training_graph.graph.nodes))
        costs = (figures.estimate_cost_ns(training_graph, node, compiled=self.compiled) for node in nodes)
        return NodeCosts("ns", tuple(costs))


@dataclass(frozen=True)
class ProfiledCosts(CostModel):
    """A node costs its measured time on another device, from a file that `checkmate-tf profile export` printed."""

    path: Path | str

    def find_node_costs(self, training_graph: TrainingGraph) -> NodeCosts:
        return NodeCosts("ns", find_profiled_costs(training_graph, load_profile(self.path), source=self.path))


def make_cost_model(
    name: str,
    *,
    cache_path: Path | str | None = None,
    device: str | None = None,
    progress: bool = True,
    compiled: bool = False,
) -> CostModel:
    """Returns the cost model of a name in COST_MODEL_NAMES, of a device in `devices.DEVICES`, or of a profile file.

    Args:
        compiled: whether XLA compiles the step. "auto" is a roofline if so, and measured costs otherwise. Timing the
            code that XLA compiles for each node takes as long as the rest of planning, and leads to no faster steps.
            In a roofline, a node then starts one kernel.

    Raises ProfileError for any other name.
    """
    if name == "auto":
        name = "roofline" if compiled else "measured"
    match name:
        case "measured":
            return MeasuredCosts(cache_path, device, progress)
        case "flops":
            return FlopsCosts()
        case "roofline":
            return RooflineCosts(cache_path, device, compiled)
        case "unit":
            return UnitCosts()
    if name in DEVICES:
        return DeviceCosts(name, compiled)
    if name.endswith(".json"):
        load_profile(name)
        return ProfiledCosts(name)
    raise ProfileError(
        f"costs {name!r} are unknown; use one of {', '.join(COST_MODEL_NAMES)}, a device of {', '.join(DEVICES)}, or a "
        "file NAME.json that `checkmate-tf profile export` printed"
    )


def cost_training_graph(
    training_graph: TrainingGraph,
    model: CostModel | str = "auto",
    *,
    cache_path: Path | str | None = None,
    device: str | None = None,
    progress: bool = True,
    on_node: Callable[[int, int], None] | None = None,
) -> TrainingGraph:
    """Returns a training graph with the costs of a cost model or its name and, if nodes are measured, their workspace.

    Args:
        cache_path: the profile cache; by default, the file in the user's cache directory.
        device: a device such as "CPU:0"; by default, the first GPU, or the CPU.
        progress: whether to show progress on standard error.
        on_node: called, instead of a bar, with the number of nodes timed and their total.

    Raises ProfileError for an unknown name.
    """
    if isinstance(model, str):
        model = make_cost_model(model, cache_path=cache_path, device=device, progress=progress)
    if isinstance(model, MeasuredCosts) and on_node is not None:
        model = replace(model, progress=False, on_node=on_node)
    return replace(training_graph, graph=replace_costs(training_graph.graph, model.find_node_costs(training_graph)))


def replace_costs(graph: Graph, costs: NodeCosts) -> Graph:
    """Returns a graph with other costs. Raises ProfileError unless there is one for each node."""
    if len(costs.costs) != len(graph.nodes):
        raise ProfileError(
            f"{len(costs.costs)} costs do not fit graph {graph.name!r} of {len(graph.nodes)} nodes; give one a node"
        )
    workspace = costs.workspace_bytes or tuple(node.workspace_bytes for node in graph.nodes)
    nodes = tuple(
        replace(node, cost=cost, workspace_bytes=needed)
        for node, cost, needed in zip(graph.nodes, costs.costs, workspace, strict=True)
    )
    return replace(graph, nodes=nodes, cost_unit=costs.unit)


def estimate_roofline_costs(training_graph: TrainingGraph, roofline: Roofline, *, compiled: bool) -> list[int]:
    """Returns a roofline's estimate of the cost of every node, ns, [num_nodes].

    Only values that leave the node count as moved.

    Args:
        compiled: a node starts one kernel, not one for each operation.
    """
    graph = training_graph.graph
    costs = []
    for index, node in enumerate(graph.nodes):
        ops = training_graph.get_node_ops(index)
        moved_bytes = sum(graph.values[value].size_bytes for value in (*node.inputs, *node.outputs))
        num_kernels = 1 if compiled else len(ops)
        costs.append(round(roofline.estimate_cost_ns(sum(map(count_op_flops, ops)), moved_bytes, num_kernels)))
    return costs


def _warn_of_estimates(graph: Graph, reasons: dict[int, str]) -> None:
    node, reason = next(iter(reasons.items()))
    warn(
        f"{len(reasons)} of {len(graph.nodes)} nodes of {graph.name!r} cannot be measured alone and are estimated; "
        f"the first is {graph.nodes[node].name}: {reason}"
    )
