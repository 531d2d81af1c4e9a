"""Describes a schedule position by position: the node, the reason for it, its time, and the values in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.origins import NodeOrigin, Origins
from checkmate_tf.planning.pattern_costs import PatternCost
from checkmate_tf.schedule import Retention, Schedule
from checkmate_tf.simulator import Simulation, Timing, find_storage, make_retain_all_schedule, simulate, time_schedule
from checkmate_tf.solvers import Solution

if TYPE_CHECKING:
    from checkmate_tf.executors.step import Chunks  # this module imports TensorFlow
    from checkmate_tf.measurement.difference import UpdateDifference

# The kinds of values, by their names in reports. The kind of a copy is an index into this.
KINDS = ("activations", "activations computed again", "activations copied back", "gradients")
WORKSPACE = "workspace"


@dataclass(frozen=True)
class PlanView:
    """The facts about a plan, or about files of a graph and a schedule, that reports need.

    Args:
        resident: the parts of the graph's resident bytes by their names.
        solution: the solution with this schedule; None if it is not known.
        measured: the peaks of the stock and of the rematerialized step by a device's allocator, in bytes; None if no
            step was run.
        how: the source of these: "measured" in runs, or "compiled" by XLA.
        device: the device for which the step was planned, in words; "" if it is not known.
        stock_peak_bytes: the predicted peak of the stock step; None for that of the graph.
        difference: the difference between a rewritten and the stock step, relative to the change, and its variable;
            None if the two were not compared.
        updates: the weights whose updates differ by more than that.
        chunks: the parts that are computed in chunks of rows.
        margin_bytes: bytes that were subtracted from the requested budget.
        patterns: the patterns of nodes to keep or to recompute, and the cost of each.
        offloaded_state_bytes: optimizer state and frozen weights in a file or in host memory.
        state_cost: the cost of reading and writing these.
        measured_overhead: the measured time of the step divided by the stock step's, minus 1; None if not measured.
    """

    name: str
    graph: Graph
    schedule: Schedule
    origins: Origins
    budget_bytes: int | None = None
    resident: Mapping[str, int] = field(default_factory=dict)
    solution: Solution | None = None
    measured: tuple[int, int] | None = None
    how: Literal["measured", "compiled"] = "measured"
    device: str = ""
    stock_peak_bytes: int | None = None
    difference: tuple[float, str] | None = None
    updates: "tuple[UpdateDifference, ...]" = ()
    chunks: "tuple[Chunks, ...]" = ()
    patterns: tuple[PatternCost, ...] = ()
    margin_bytes: int = 0
    offloaded_state_bytes: int = 0
    state_cost: int = 0
    measured_overhead: float | None = None

    @cached_property
    def stock(self) -> "Timeline":
        """Returns the timeline of the step without rematerialization."""
        return Timeline(self.graph, make_retain_all_schedule(self.graph))

    @cached_property
    def rematerialized(self) -> "Timeline":
        """Returns the timeline of the schedule."""
        return Timeline(self.graph, self.schedule)

    @property
    def predicted(self) -> tuple[int, int]:
        """Returns the predicted peaks of the stock and of the rematerialized step, in bytes."""
        stock_bytes = self.stock_peak_bytes or self.stock.simulation.peak_bytes
        return stock_bytes, self.rematerialized.simulation.peak_bytes

    @property
    def state_share(self) -> float:
        """Returns `state_cost` divided by the stock step's cost."""
        return self.state_cost / max(self.graph.baseline_cost, 1)

    @property
    def overhead(self) -> float:
        """Returns the cost of the rematerialized step divided by the stock step's cost, minus 1."""
        return float(self.rematerialized.begin[-1]) / max(self.graph.baseline_cost, 1) - 1 + self.state_share

    @cached_property
    def resident_parts(self) -> dict[str, int]:
        """Returns the parts of the resident bytes by name, without empty ones. They add up to the resident bytes."""
        parts, left = {}, self.graph.resident_bytes
        for name, num_bytes in self.resident.items():
            parts[name] = min(num_bytes, left)
            left -= parts[name]
        parts["other resident" if any(parts.values()) else "resident"] = left
        return {name: num_bytes for name, num_bytes in parts.items() if num_bytes}

    def get_origin(self, node: int) -> NodeOrigin:
        """Returns the origin of a node."""
        return self.origins.nodes[node]

    def get_label(self, node: int) -> str:
        """Returns the layer of a node; its own name if the layer is not known."""
        return self.origins.nodes[node].layer or self.graph.nodes[node].name


@dataclass(frozen=True)
class Timeline:
    """The positions of a schedule in their order."""

    graph: Graph
    schedule: Schedule

    @cached_property
    def order(self) -> np.ndarray:
        """Returns the node of each position, int64 [num_positions]."""
        return np.asarray(self.schedule.order, dtype=np.int64)

    @cached_property
    def is_again(self) -> np.ndarray:
        """Returns whether each position computes a node again, bool [num_positions]."""
        again = np.ones(len(self.order), dtype=np.bool_)
        again[np.unique(self.order, return_index=True)[1]] = False
        return again

    @cached_property
    def begin(self) -> np.ndarray:
        """Returns the cost before each position, including waits for transfers, and last the total.

        Its type is int64 [num_positions + 1].
        """
        return np.array([0, *self.timing.end], dtype=np.int64)

    @cached_property
    def timing(self) -> Timing:
        """Returns when each position begins and ends, and when values are copied out of memory and back."""
        return time_schedule(self.graph, self.schedule)

    @cached_property
    def simulation(self) -> Simulation:
        """Returns the bytes in use at each position, and their peak."""
        return simulate(self.graph, self.schedule)

    @cached_property
    def storage(self) -> Retention:
        """Returns the positions during which each copy of a value has storage of its own."""
        return find_storage(self.graph, self.schedule)

    @cached_property
    def kind(self) -> np.ndarray:
        """Returns the kind of each copy of `storage`, an index into KINDS, int64 [num_copies]."""
        backward = np.array([node.is_backward for node in self.graph.nodes])
        storage = self.storage
        activation = np.where(storage.fetched, 2, self.is_again[storage.start].astype(np.int64))
        return np.where(backward[self.graph.arrays.producer[storage.value]], 3, activation)

    @cached_property
    def bands(self) -> dict[str, np.ndarray]:
        """Returns the bytes of each kind of value and of workspace at each position, each int64 [num_positions].

        Together with the resident bytes, they add up to the memory of `simulation`.
        """
        storage, size = self.storage, self.graph.sizes_bytes[self.storage.value]
        bands = {}
        for number, name in enumerate(KINDS):
            change = np.zeros(len(self.order) + 1, dtype=np.int64)
            mine = self.kind == number
            np.add.at(change, storage.start[mine], size[mine])
            np.subtract.at(change, storage.end[mine] + 1, size[mine])
            bands[name] = np.cumsum(change[:-1])
        return {**bands, WORKSPACE: self.graph.arrays.workspace_bytes[self.order]}

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Lists, for each position, the later positions that read its values, in ascending order, [num_positions]."""
        readers: list[list[int]] = [[] for _ in self.order]
        latest: dict[int, int] = {}
        fetched = set(self.schedule.fetches)
        for position, number in enumerate(self.order.tolist()):
            node = self.graph.nodes[number]
            for source in {latest[value] for value in node.inputs if (position, value) not in fetched}:
                readers[source].append(position)
            latest |= {value: position for value in node.outputs} | {v: position for s, v in fetched if s == position}
        return tuple(map(tuple, readers))

    @cached_property
    def served(self) -> np.ndarray:
        """Returns the first position that needs each recomputation, also by way of others, int64 [num_positions].

        That position computes its node for the first time. -1 without one, and for first computations.
        """
        served = np.full(len(self.order), -1, dtype=np.int64)
        for position in np.nonzero(self.is_again)[0][::-1]:
            found = [served[reader] if self.is_again[reader] else reader for reader in self.readers[position]]
            served[position] = min((one for one in found if one >= 0), default=-1)
        return served

    @cached_property
    def backward_position(self) -> int:
        """Returns the first position of the backward pass; the number of positions if there is none."""
        backward = (
            position for position, number in enumerate(self.schedule.order) if self.graph.nodes[number].is_backward
        )
        return next(backward, len(self.order))

    def list_live(self, position: int) -> np.ndarray:
        """Lists the copies of `storage` that are in memory at a position, int64."""
        return np.nonzero((self.storage.start <= position) & (self.storage.end >= position))[0]
