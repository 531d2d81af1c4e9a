"""Keeps optimizer state and frozen weights of a step in a file or in host memory, as many as a plan asks for.

Such a variable takes no memory of the device. Beside an operation that uses it, its pages are in the process, or a copy
of it is in the device's memory.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.executors.emission.copies import Copies
from checkmate_tf.executors.graph.control_edges import ControlEdges
from checkmate_tf.executors.graph.host_state import HostState
from checkmate_tf.executors.graph.movable_state import MovableVariable, find_movable
from checkmate_tf.executors.graph.python_calls import make_call
from checkmate_tf.executors.graph.state_file import UPDATES, InPlaceUpdate, StateFile
from checkmate_tf.executors.graph.transfer_costs import TransferCosts
from checkmate_tf.executors.step import HostMemory, OffloadFolder, ResidentBytes
from checkmate_tf.tracing.extraction import TrainingGraph

_SCOPE = "checkmate"


@dataclass(frozen=True)
class MovedState:
    """The variables that a step uses outside of the device's memory.

    Args:
        place: where they are.
        costs: the costs of copies to that place.
    """

    place: OffloadFolder | HostMemory
    moved: tuple[MovableVariable, ...]
    costs: TransferCosts

    @staticmethod
    def of(
        training_graph: TrainingGraph, place: OffloadFolder | HostMemory, costs: TransferCosts, size_bytes: int
    ) -> "MovedState":
        """Chooses the largest variables, of at least so many bytes together."""
        movable = find_movable(training_graph, place)
        sums = accumulate((one.size_bytes for one in movable), initial=0)
        return MovedState(
            place, tuple(one for one, before in zip(movable, sums, strict=False) if before < size_bytes), costs
        )

    @property
    def variables(self) -> tuple[Any, ...]:
        """Returns TensorFlow's variables."""
        return tuple(one.variable for one in self.moved)

    @cached_property
    def file(self) -> StateFile | None:
        """Makes the file; returns None if the variables are in host memory. Raises OffloadError if that fails."""
        return StateFile(self.place.path, self.variables) if isinstance(self.place, OffloadFolder) else None

    @cached_property
    def host(self) -> HostState | None:
        """Returns the variables in host memory; None if they are in a file."""
        return HostState(self.moved) if isinstance(self.place, HostMemory) else None

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.moved)

    @property
    def frozen_bytes(self) -> int:
        """Returns the bytes of the variables that the step does not change."""
        return sum(one.size_bytes for one in self.moved if not one.writes)

    @property
    def cost_ns(self) -> int:
        """Returns the time to read the variables, and to write those that the step changes.

        A copy on the device cannot be changed in place, so a variable in host memory is read whenever an operation of
        the step reads it.
        """
        total = 0
        for one in self.moved:
            in_place = one.writes and isinstance(self.place, OffloadFolder)
            reads = 1 if in_place else len(one.reads)
            total += reads * self.costs.find_fetch_ns(one.size_bytes)
            total += len(one.writes) * self.costs.find_offload_ns(one.size_bytes)
        return total

    def take_from(self, resident: ResidentBytes) -> ResidentBytes:
        """Returns the resident bytes without the variables."""
        from_optimizer = min(self.size_bytes - self.frozen_bytes, resident.optimizer)
        return replace(
            resident,
            parameters=resident.parameters - self.frozen_bytes,
            optimizer=resident.optimizer - from_optimizer,
            other_state=resident.other_state - (self.size_bytes - self.frozen_bytes - from_optimizer),
            offloaded=self.size_bytes,
        )

    def add_to_workspace(self, training_graph: TrainingGraph) -> TrainingGraph:
        """Returns the graph with pages or copies of the variables in the workspace of the nodes that use them."""
        return _change_workspace(training_graph, self.moved, 1)

    def drop_from_workspace(self, training_graph: TrainingGraph) -> TrainingGraph:
        """Returns the graph as it was before `add_to_workspace`."""
        return _change_workspace(training_graph, self.moved, -1)

    def write_updates(self, graph_def: GraphDef) -> list[Any]:
        """Makes the assignments of a rewritten step change the variables in place. Returns the calls of Python."""
        if self.host is not None:
            self.host.write_updates(graph_def)
            return []
        calls = []
        waits = {name: old for one in self.moved for name, old in one.writes.items()}
        for definition in [one for one in graph_def.node if one.name in waits]:
            call = InPlaceUpdate(UPDATES[definition.op])
            calls.append(call)
            handle, value, *controls = definition.input
            controls += [f"^{name}" for name in waits[definition.name] if f"^{name}" not in controls]
            dtype = tf.as_dtype(definition.attr["dtype"].type)
            target = NodeDef(name=f"{definition.name}/target", op="ReadVariableOp", input=[handle, *controls])
            target.attr["dtype"].type = dtype.as_datatype_enum
            graph_def.node.append(target)
            inputs = [f"{target.name}:0", value, *controls]
            definition.CopyFrom(make_call(definition.name, call, inputs, [dtype, dtype]))
        return calls


def _change_workspace(training_graph: TrainingGraph, moved: Sequence[MovableVariable], sign: int) -> TrainingGraph:
    nodes = list(training_graph.graph.nodes)
    for one in moved:
        for number in one.nodes:
            workspace_bytes = nodes[number].workspace_bytes + sign * one.size_bytes
            nodes[number] = replace(nodes[number], workspace_bytes=workspace_bytes)
    return replace(training_graph, graph=replace(training_graph.graph, nodes=tuple(nodes)))


class PageReleases:
    """Writes the releases of the variables' pages, behind the nodes that use them."""

    def __init__(self, copies: Copies, policy: ControlEdges, state: MovedState | None):
        self.copies = copies
        self.policy = policy
        self.names: list[str] = []
        self.calls: list[Any] = []
        self.releases = defaultdict(list)
        if state is not None and state.file is not None:
            for one, release in zip(state.moved, state.file.releases, strict=True):
                for node in one.nodes:
                    self.releases[node].append(release)

    def write(self, position: int, node: int) -> None:
        """Releases the pages of a position's node, once it has run."""
        for release in self.releases.get(node, ()):
            name = f"{_SCOPE}/release_{len(self.names)}"
            self.copies.written.append(make_call(name, release, self.policy.wait_for_all(position + 1)))
            self.names.append(name)
            self.calls.append(release)
