"""Writes a schedule's copies out of memory and back, in the order of the simulator's times.

Values are copied to a file, or from a GPU to host memory. There, a copy out is a view on the host's device, for which
TensorFlow itself copies the tensor. Such an operation runs only when the copy has ended, and its own copy back begins
as soon as it has run. Therefore, a second view on the host waits for the positions before the copy back.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.errors import EmissionError
from checkmate_tf.executors.emission.copies import Copies
from checkmate_tf.executors.graph.control_edges import ControlEdges
from checkmate_tf.executors.graph.python_calls import make_call
from checkmate_tf.executors.graph.transfer_file import PythonCall, TransferFile
from checkmate_tf.executors.graph.views import HOST, make_view
from checkmate_tf.executors.step import HostMemory, OffloadFolder
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import find_offload_ends
from checkmate_tf.tracing.ops import TensorId

_SCOPE = "checkmate"


class Offloads:
    """Writes the transfers of one schedule, position by position."""

    def __init__(
        self, copies: Copies, policy: ControlEdges, schedule: Schedule, place: OffloadFolder | HostMemory | None
    ):
        """Prepares room for all offloaded values.

        Raises EmissionError if there is no place for them, and OffloadError if the directory cannot be written or the
        disk is full.
        """
        self.copies = copies
        self.policy = policy
        self.fetched_at: dict[int, list[int]] = defaultdict(list)
        for position, value in schedule.fetches:
            self.fetched_at[position].append(value)
        values = sorted({value for _, value in schedule.fetches})
        if values and place is None:
            raise EmissionError('the schedule offloads values: name their place with Options(offload="file:DIRECTORY")')
        self.ends = find_offload_ends(copies.training_graph.graph, schedule)
        self.producer = copies.training_graph.graph.producer
        self.written_at: dict[int, list[int]] = defaultdict(list)
        for value in values:
            self.written_at[schedule.order.index(self.producer[value])].append(value)
        tensors = [tensor for value in values for tensor in copies.training_graph.tensors[value]]
        self.writer: _Writer = (
            _FileWriter(copies, tensors, place.path)
            if isinstance(place, OffloadFolder) and tensors
            else _HostWriter(copies)
        )

    @property
    def calls(self) -> list[Any]:
        """Returns the functions of Python that the copies call."""
        return self.writer.calls

    def check(self) -> None:
        """Raises OffloadError if a value could not be copied out since the last check."""
        self.writer.check()

    def write_fetches(self, position: int) -> None:
        """Writes the copies back into memory that begin with a position. They wait for all positions before it."""
        for value in self.fetched_at.get(position, ()):
            waits = self.policy.wait_for_all(position)
            for tensor in self.copies.training_graph.tensors[value]:
                newest = self.copies.tensor(tensor)
                self.copies.renamed[newest] = f"{self.writer.write_fetch(tensor, waits)}:0"

    def write_offloads(self, position: int) -> None:
        """Writes the copies out of memory of a position's values. A later position waits for the end of each copy."""
        for value in self.written_at.get(position, ()):
            for tensor in self.copies.training_graph.tensors[value]:
                self.policy.add_tail(self.ends[value], self.writer.write_offload(tensor))


class _Writer(Protocol):
    """Writes copies of tensors to one place, and back."""

    calls: list[Any]

    def write_offload(self, tensor: TensorId) -> str:
        """Writes a copy out of memory. Returns the name of an operation that ends with it."""

    def write_fetch(self, tensor: TensorId, waits: list[str]) -> str:
        """Writes a copy back, which waits for operations. Returns the name of the tensor's new copy."""

    def check(self) -> None:
        """Raises OffloadError if a value could not be copied out since the last check."""


class _FileWriter:
    """Writes copies to a file with room for some tensors."""

    def __init__(self, copies: Copies, tensors: Iterable[TensorId], directory: str):
        self.copies = copies
        self.calls: list[Any] = []
        self.offset_of: dict[TensorId, int] = {}
        size_bytes = 0
        for tensor in tensors:
            self.offset_of[tensor] = size_bytes
            size_bytes += copies.size_bytes(tensor)
        self.file = TransferFile(directory, size_bytes)
        self.num_written = 0

    def check(self) -> None:
        self.file.check()

    def write_offload(self, tensor: TensorId) -> str:
        call = self.file.make_offload(self.offset_of[tensor])
        return self._write_call("offload", self.copies.tensor(tensor), tensor, call)

    def write_fetch(self, tensor: TensorId, waits: list[str]) -> str:
        output = self.copies.ops.ops[tensor[0]].outputs[tensor[1]]
        self.num_written += 1
        name = f"{_SCOPE}/fetch_{self.num_written}"
        shape = NodeDef(name=f"{name}/shape", op="Const", device=HOST)
        shape.attr["value"].CopyFrom(AttrValue(tensor=tf.make_tensor_proto(output.shape.as_list(), dtype=tf.int32)))
        shape.attr["dtype"].type = tf.int32.as_datatype_enum
        room = NodeDef(name=f"{name}/room", op="Empty", device=HOST, input=[shape.name, *waits])
        room.attr["dtype"].type = output.dtype.as_datatype_enum
        self.copies.written.extend([shape, room])
        call = self.file.make_fetch(self.offset_of[tensor])
        filled = self._write_call("fill", f"{room.name}:0", tensor, call)
        # With an identity instead, grappler would make the readers themselves wait, and then not fuse them.
        self.copies.written.append(make_view(name, output, HOST, [f"{room.name}:0", f"^{filled}"]))
        return name

    def _write_call(self, kind: str, source: str, tensor: TensorId, call: PythonCall) -> str:
        self.num_written += 1
        name = f"{_SCOPE}/{kind}_{self.num_written}"
        self.copies.written.append(make_call(name, call, [source], [self.copies.dtype(tensor)]))
        self.calls.append(call)
        return name


class _HostWriter:
    """Writes copies from the memory of a GPU to host memory."""

    def __init__(self, copies: Copies):
        self.copies = copies
        self.calls: list[Any] = []
        self.outside: dict[TensorId, str] = {}
        self.num_fetched = 0

    def check(self) -> None:
        pass

    def write_offload(self, tensor: TensorId) -> str:
        output = self.copies.ops.ops[tensor[0]].outputs[tensor[1]]
        name = f"{_SCOPE}/offload_{len(self.outside)}"
        self.copies.written.append(make_view(name, output, HOST, [self.copies.tensor(tensor)]))
        self.outside[tensor] = name
        return name

    def write_fetch(self, tensor: TensorId, waits: list[str]) -> str:
        operation = self.copies.ops.ops[tensor[0]]
        output = operation.outputs[tensor[1]]
        self.num_fetched += 1
        name = f"{_SCOPE}/fetch_{self.num_fetched}"
        late = make_view(f"{name}/begin", output, HOST, [f"{self.outside[tensor]}:0", *waits])
        device = operation.device or f"/device:{find_default_device()}"
        self.copies.written.extend([late, make_view(name, output, device, [f"{late.name}:0"])])
        return name
