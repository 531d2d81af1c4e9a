"""Finds the variables of a step that can be kept outside of the device's memory: optimizer state and frozen weights.

A step changes them in place there. Variables that a step both changes and reads elsewhere, as it does trained weights,
stay in memory.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate_tf.executors.graph.state_file import UPDATES
from checkmate_tf.executors.graph.transfer_costs import LEAST_BYTES
from checkmate_tf.executors.graph.views import HOST
from checkmate_tf.executors.step import HostMemory, OffloadFolder
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.tracing.ops import OpList
from checkmate_tf.tracing.state_updates import find_update_ops

_DTYPES = (tf.float16, tf.float32, tf.float64)  # in which NumPy rounds as TensorFlow does, and shares memory with it


@dataclass(frozen=True)
class MovableVariable:
    """A variable that a step can use outside of the device's memory.

    Args:
        variable: TensorFlow's variable.
        handle: the name of the placeholder of its handle.
        writes: name of an assignment -> the operations that must have read the old value before.
        reads: each node that reads the variable, with the operation through which it does so.
        nodes: the nodes that read or change the variable.
    """

    variable: Any
    handle: str
    size_bytes: int
    writes: Mapping[str, tuple[str, ...]]
    reads: tuple[tuple[int, int], ...]
    nodes: tuple[int, ...]


def find_movable(training_graph: TrainingGraph, place: OffloadFolder | HostMemory) -> tuple[MovableVariable, ...]:
    """Returns the variables that a step can use in a file or in host memory, the largest first.

    They are large variables that only updates read, such as optimizer state, and those that the step never changes. A
    step that changes no variable has none, because something else may change them after each step. In host memory, a
    variable has another handle, which functions that were traced before do not know, such as those that evaluate or
    predict. Only optimizer state can therefore be there.
    """
    uses = _Uses(training_graph)
    if not any(op.type in UPDATES for op in training_graph.ops.ops):
        return ()
    handles = {id(variable.handle): variable for variable in training_graph.function.graph.variables}
    captures = [
        (handles[id(outer)], inner)
        for outer, inner in training_graph.function.graph.captures
        if id(outer) in handles and not isinstance(handles[id(outer)], tf.distribute.DistributedValues)
    ]
    captures = [pair for pair in captures if _can_be_at(place, pair[0])]
    found = [uses.judge(variable, inner.op.name) for variable, inner in captures]
    movable = [one for one in found if one is not None and (one.writes or isinstance(place, OffloadFolder))]
    return tuple(sorted(movable, key=lambda one: -one.size_bytes))


def _can_be_at(place: OffloadFolder | HostMemory, variable: Any) -> bool:
    device = variable.handle.device
    if isinstance(place, OffloadFolder):
        return variable.dtype in _DTYPES and "device:CPU" in device
    return variable.dtype.is_floating and not device.endswith(HOST)


class _Uses:
    """The operations of a step that use its variables."""

    def __init__(self, training_graph: TrainingGraph):
        self.ops: OpList = training_graph.ops
        self.group_of = training_graph.grouping.group_of
        self.updates = find_update_ops(self.ops)
        self.number = {op.name: number for number, op in enumerate(self.ops.ops)}
        self.readers: dict[int, list[int]] = defaultdict(list)
        self.waiting: dict[int, list[int]] = defaultdict(list)
        for index, tensors in enumerate(self.ops.inputs):
            for source in {source for source, _ in tensors}:
                self.readers[source].append(index)
            for source in self.ops.controls[index]:
                self.waiting[source].append(index)

    def judge(self, variable: Any, handle: str) -> MovableVariable | None:
        """Returns a variable if it is movable; `handle` names the placeholder of its handle."""
        size_bytes = variable.dtype.size * (variable.shape.num_elements() or 0)
        if handle not in self.number or size_bytes < LEAST_BYTES:
            return None
        users = self.readers[self.number[handle]]
        types = {self.ops.ops[user].type for user in users}
        if not types <= {"ReadVariableOp", *UPDATES}:
            return None
        reads = [user for user in users if self.ops.ops[user].type == "ReadVariableOp"]
        writes = [user for user in users if user not in reads]
        consumers = {read: self.find_consumers(read) for read in reads}
        using = {number for found in consumers.values() for number in found}
        if writes and not using <= self.updates:
            return None
        waits: dict[str, tuple[str, ...]] = {}
        for write in writes:
            old = {one for read in reads if read in self.ops.controls[write] for one in consumers[read]} - {write}
            if old & self.find_following(write):
                return None
            waits[self.ops.ops[write].name] = tuple(sorted(self.ops.ops[one].name for one in old))
        pairs = {(self.group_of[number], read) for read in reads for number in consumers[read]}
        nodes = {node for node, _ in pairs}.union(self.group_of[number] for number in writes) - {-1}
        reading = tuple(sorted(pair for pair in pairs if pair[0] >= 0))
        return MovableVariable(variable, handle, size_bytes, waits, reading, tuple(sorted(nodes)))

    def find_consumers(self, read: int) -> set[int]:
        """Returns the operations of nodes that read a variable's value, possibly through views."""
        return set(self.follow([read], lambda number: self.readers[number], lambda number: self.group_of[number] < 0))

    def find_following(self, write: int) -> set[int]:
        """Returns the operations that run after an assignment because they need it."""
        return set(self.follow([write], lambda number: [*self.readers[number], *self.waiting[number]], lambda _: True))

    @staticmethod
    def follow(
        first: Iterable[int], step: Callable[[int], Iterable[int]], goes_on: Callable[[int], bool]
    ) -> Iterator[int]:
        """Yields operations behind the first ones, and those behind them if one `goes_on`."""
        seen: set[int] = set()
        going = list(first)
        while going:
            for number in step(going.pop()):
                if number not in seen:
                    seen.add(number)
                    if goes_on(number):
                        going.append(number)
                    yield number
