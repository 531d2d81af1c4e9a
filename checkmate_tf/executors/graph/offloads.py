"""Writes a schedule's copies out of memory and back, in the order of the simulator's times."""

from collections import defaultdict

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.errors import EmissionError
from checkmate_tf.executors.emission.copies import Copies
from checkmate_tf.executors.graph.control_edges import ControlEdges
from checkmate_tf.executors.graph.transfer_file import PythonCall, TransferFile
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import find_offload_ends
from checkmate_tf.tf_private import register_call
from checkmate_tf.tracing.ops import TensorId

_SCOPE = "checkmate"
_HOST = "/device:CPU:0"


class Offloads:
    """Writes the transfers of one schedule, position by position."""

    def __init__(self, copies: Copies, policy: ControlEdges, schedule: Schedule, directory: str | None):
        """Prepares a file with room for all offloaded values.

        Raises EmissionError if there is no directory for it, and OffloadError if the directory cannot be written or the
        disk is full.
        """
        self.copies = copies
        self.policy = policy
        self.calls: list[PythonCall] = []
        self.fetched_at: dict[int, list[int]] = defaultdict(list)
        for position, value in schedule.fetches:
            self.fetched_at[position].append(value)
        values = sorted({value for _, value in schedule.fetches})
        if values and directory is None:
            raise EmissionError('the schedule offloads values: name their place with Options(offload="file:DIRECTORY")')
        self.ends = find_offload_ends(copies.training_graph.graph, schedule)
        self.producer = copies.training_graph.graph.producer
        self.written_at: dict[int, list[int]] = defaultdict(list)
        for value in values:
            self.written_at[schedule.order.index(self.producer[value])].append(value)
        self.offset_of: dict[TensorId, int] = {}
        size_bytes = 0
        for value in values:
            for tensor in copies.training_graph.tensors[value]:
                self.offset_of[tensor] = size_bytes
                size_bytes += copies.size_bytes(tensor)
        self.file = TransferFile(directory, size_bytes) if values and directory else None
        self.num_written = 0

    def write_fetches(self, position: int) -> None:
        """Writes the copies back into memory that begin with a position. They wait for all positions before it."""
        for value in self.fetched_at.get(position, ()):
            waits = self.policy.wait_for_all(position)
            for tensor in self.copies.training_graph.tensors[value]:
                self._write_fetch(tensor, waits)

    def write_offloads(self, position: int) -> None:
        """Writes the copies out of memory of a position's values. A later position waits for the end of each copy."""
        assert self.file is not None or position not in self.written_at
        for value in self.written_at.get(position, ()):
            for tensor in self.copies.training_graph.tensors[value]:
                assert self.file is not None
                call = self.file.make_offload(self.offset_of[tensor])
                name = self._write_call("offload", self.copies.tensor(tensor), tensor, call)
                self.policy.add_tail(self.ends[value], name)

    def _write_fetch(self, tensor: TensorId, waits: list[str]) -> None:
        assert self.file is not None
        output = self.copies.ops.ops[tensor[0]].outputs[tensor[1]]
        self.num_written += 1
        name = f"{_SCOPE}/fetch_{self.num_written}"
        shape = NodeDef(name=f"{name}/shape", op="Const", device=_HOST)
        shape.attr["value"].CopyFrom(AttrValue(tensor=tf.make_tensor_proto(output.shape.as_list(), dtype=tf.int32)))
        shape.attr["dtype"].type = tf.int32.as_datatype_enum
        room = NodeDef(name=f"{name}/room", op="Empty", device=_HOST, input=[shape.name, *waits])
        room.attr["dtype"].type = output.dtype.as_datatype_enum
        self.copies.written.extend([shape, room])
        call = self.file.make_fetch(self.offset_of[tensor])
        filled = self._write_call("fill", f"{room.name}:0", tensor, call)
        newest = self.copies.tensor(tensor)
        # With an identity instead, grappler would make the readers themselves wait, and then not fuse them.
        view = NodeDef(name=name, op="EnsureShape", device=_HOST, input=[f"{room.name}:0", f"^{filled}"])
        view.attr["T"].type = output.dtype.as_datatype_enum
        view.attr["shape"].shape.CopyFrom(output.shape.as_proto())
        self.copies.written.append(view)
        self.copies.renamed[newest] = f"{name}:0"

    def _write_call(self, kind: str, source: str, tensor: TensorId, call: PythonCall) -> str:
        self.num_written += 1
        definition = NodeDef(name=f"{_SCOPE}/{kind}_{self.num_written}", op="PyFunc", device=_HOST, input=[source])
        definition.attr["token"].s = register_call(call).encode()
        definition.attr["Tin"].list.type.append(self.copies.dtype(tensor).as_datatype_enum)
        definition.attr["Tout"].list.SetInParent()
        self.copies.written.append(definition)
        self.calls.append(call)
        return definition.name
