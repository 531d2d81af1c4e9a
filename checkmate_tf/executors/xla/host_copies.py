"""Writes a schedule's copies to host memory and back in a step that XLA compiles.

XLA copies a value that is annotated with a place in memory, and may move that copy to any point of the step. Two
barriers keep it at its place in the schedule. Operations after the value's last forward reader wait for the copy out,
which frees the device's memory from there on. The copy back waits for the operations before it. Without a barrier
between them, XLA drops both copies. Gradients of weights are computed before the next copy back, because XLA would
otherwise compute them at the end of a step with copies, and hold the gradients that they read (seen in XLA:GPU of JAX
0.10.2, for an H100).
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import tensorflow as tf

from checkmate_tf.errors import ProfileError
from checkmate_tf.executors.xla.model.graph import XlaGraph
from checkmate_tf.executors.xla.order.gradient_ties import GradientTies
from checkmate_tf.executors.xla.order.ties import write_operations
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import find_offload_ends
from checkmate_tf.tf_private import place_in_memory
from checkmate_tf.tracing.ops import TensorId

_HOST, _DEVICE = "pinned_host", "device"

# The start of a smaller copy takes longer than the copy.
_LEAST_BYTES = 1 << 20
_LATENCY_NS = 10_000


def add_transfer_costs(xla_graph: XlaGraph, bytes_per_s: float) -> XlaGraph:
    """Returns the graph with costs of transfers for the values that can be copied: large activations of one tensor.

    Raises ProfileError if the costs of its nodes are not times.
    """
    graph, tensors = xla_graph.graph, xla_graph.training_graph
    if graph.cost_unit != "ns":
        raise ProfileError(
            f"to offload, costs must be times, and those of {graph.name!r} are in {graph.cost_unit!r}: leave costs out"
        )
    values = list(graph.values)
    for number, value in enumerate(values):
        known = xla_graph.values[number]
        if value.size_bytes < _LEAST_BYTES or known is None or graph.nodes[graph.producer[number]].is_backward:
            continue
        found = tensors.get_value_tensors(known)
        if len(found) == 1 and found[0].dtype.is_floating and found[0].shape.is_fully_defined():
            cost_ns = _LATENCY_NS + round(1e9 * value.size_bytes / bytes_per_s)
            values[number] = replace(value, offload_cost=cost_ns, fetch_cost=cost_ns)
    return replace(xla_graph, graph=replace(graph, values=tuple(values)))


class HostCopies:
    """Writes the transfers of one schedule, position by position."""

    def __init__(self, policy: GradientTies, schedule: Schedule):
        self.policy = policy
        self.progress = policy.progress
        self.copies = policy.progress.copies
        self.fetched_at: dict[int, list[int]] = defaultdict(list)
        self.computed_at: dict[int, list[int]] = defaultdict(list)
        self.ended_at: dict[int, list[int]] = defaultdict(list)
        self.on_host: dict[int, str] = {}  # value -> the name of its copy
        self.results: list[TensorId] = []  # gradients of weights for which no copy waits yet
        graph = self.progress.graph
        for position, value in schedule.fetches:
            self.fetched_at[position].append(value)
        for value, position in find_offload_ends(graph, schedule).items():
            self.computed_at[schedule.order.index(graph.producer[value])].append(value)
            self.ended_at[position].append(value)

    def begin_position(self, position: int) -> None:
        """Writes the copies back to the device that begin with a position, after all earlier operations."""
        for value in self.fetched_at.get(position, ()):
            (tensor,) = self.progress.xla_graph.tensors(value)
            newest = self.copies.tensor(tensor)
            waiting = self.wait(self.on_host[value], tensor, position)
            self.copies.renamed[newest] = self.place(waiting, tensor, _DEVICE)

    def end_position(self, position: int) -> None:
        """Writes the copies of a position's values to the host, and makes later positions wait for those that end."""
        index = self.progress.order[position]
        node = self.progress.graph.nodes[index]
        if node.is_backward and self.progress.returns_gradient(index):
            yielded = (tensor for value in node.outputs for tensor in self.progress.xla_graph.tensors(value))
            self.results += [tensor for tensor in yielded if self.copies.dtype(tensor).is_floating]
        for value in self.computed_at.get(position, ()):
            (tensor,) = self.progress.xla_graph.tensors(value)
            self.on_host[value] = self.place(self.copies.tensor(tensor), tensor, _HOST)
        for value in self.ended_at.get(position, ()):
            (tensor,) = self.progress.xla_graph.tensors(value)
            self.on_host[value] = self.wait(self.on_host[value], tensor, position + 1)

    def wait(self, name: str, like: TensorId, position: int) -> str:
        """Puts a copy and the first inputs of all positions from this one on behind one barrier. Returns the copy."""
        awaited = self.find_awaited(position)
        if awaited is None:
            return name
        ties = self.progress.start_ties([awaited])
        tied = ties.tie(name, self.copies.dtype(like))
        for result in self.results:
            given = self.copies.tensor(result)
            self.copies.renamed[given] = ties.tie(given, self.copies.dtype(result))
        self.results.clear()
        self.copies.renamed.update(ties.finish())
        return tied

    def find_awaited(self, position: int) -> TensorId | None:
        """Returns the newest tensor from before a position that is read there or later.

        In a run of recomputation, it is the newest tensor of the run, as the run's inputs are behind a barrier already.
        """
        progress = self.progress
        if self.policy.current is not None:
            return self.policy.current.newest
        for index in progress.order[position:]:
            known = [value for value in progress.graph.nodes[index].inputs if value in progress.computed_at]
            found = progress.find_newest_float(known)
            if found is not None:
                return found
        return None

    def place(self, name: str, tensor: TensorId, memory: str) -> str:
        """Writes a copy of a tensor in a kind of memory, and returns its name."""
        output = self.copies.ops.ops[tensor[0]].outputs[tensor[1]]
        scope = f"checkmate/{memory}_{len(self.copies.written)}"
        build: Callable[..., tf.Tensor] = partial(_place, shape=tuple(output.shape), memory=memory)
        return write_operations(build, scope, [(name, output.dtype)], self.copies.written).results[0]


def _place(tensor: tf.Tensor, *, shape: tuple[int, ...], memory: str) -> tf.Tensor:
    return place_in_memory(tf.ensure_shape(tensor, shape), memory)
