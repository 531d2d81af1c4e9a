"""Keeps variables in host memory while a GPU trains: each operation that uses one copies it to the GPU.

Such a variable exchanges its handle for that of a second one on the host, so saving, restoring and assigning need not
know of it. A function that captured one of the two handles reads no other memory, so `place_state` must have put the
variables where a function expects them before it runs.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from checkmate_tf.executors.emission.copies import Copies
from checkmate_tf.executors.graph.control_edges import ControlEdges
from checkmate_tf.executors.graph.movable_state import MovableVariable
from checkmate_tf.executors.graph.views import HOST, make_view
from checkmate_tf.interrupts import hold_interrupts
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.tf_private import make_variable_handle, set_variable_handle

_SCOPE = "checkmate"
_HANDLES = "_checkmate_handles"


@dataclass(frozen=True)
class _Handles:
    """The handles of one variable, of which it uses one. The variable behind the other one is empty."""

    on_device: tf.Tensor
    on_host: tf.Tensor

    @staticmethod
    def of(variable: Any) -> "_Handles":
        """Returns the handles of a variable. The first call makes the one on the host."""
        handles = getattr(variable, _HANDLES, None)
        if handles is None:
            with tf.init_scope(), tf.device(HOST):
                handles = _Handles(variable.handle, make_variable_handle(variable))
            setattr(variable, _HANDLES, handles)
        return handles


def place_state(variables: Iterable[Any], on_host: Sequence[Any] = ()) -> None:
    """Moves variables to host memory, and others, which were moved there earlier, back to the device."""
    wanted = {id(variable) for variable in on_host}
    for variable in variables:
        if id(variable) in wanted:
            _move(variable, _Handles.of(variable).on_host)
        elif hasattr(variable, _HANDLES):
            _move(variable, _Handles.of(variable).on_device)


def _move(variable: Any, handle: tf.Tensor) -> None:
    """Moves the value of a variable to that behind another handle, and makes the variable use that one."""
    old = variable.handle
    if old is handle:
        return
    with hold_interrupts():
        tf.raw_ops.AssignVariableOp(resource=handle, value=variable.read_value())
        set_variable_handle(variable, handle)
        tf.raw_ops.AssignVariableOp(resource=old, value=tf.zeros([0], variable.dtype))


@dataclass(frozen=True)
class HostState:
    """The variables of one step that are in host memory."""

    moved: tuple[MovableVariable, ...]

    @cached_property
    def handles(self) -> dict[str, tf.Tensor]:
        """Returns the handles that the step captures, by the names of its placeholders."""
        return {one.handle: _Handles.of(one.variable).on_host for one in self.moved}

    def write_updates(self, graph_def: GraphDef) -> None:
        """Makes the operations of a rewritten step that read or change the variables run on the host."""
        handles = {one.handle for one in self.moved}
        for definition in graph_def.node:
            if definition.input and definition.input[0].partition(":")[0] in handles:
                definition.device = HOST


class HostReads:
    """Writes the copies of variables to the device, in front of the nodes that use them.

    TensorFlow would make such a copy as soon as it can, and hold it until the node has run. Therefore, a view on the
    host waits for the positions before the node. Reads that belong to a node wait anyway, such as that of a value that
    the node has just assigned.
    """

    def __init__(self, copies: Copies, policy: ControlEdges, state: HostState | None):
        self.copies = copies
        self.policy = policy
        self.num_written = 0
        self.names: dict[int, str] = {}
        self.reads = defaultdict(list)
        for node, read in (pair for one in (state.moved if state else ()) for pair in one.reads):
            if copies.grouping.group_of[read] < 0:
                self.reads[node].append(read)

    def write(self, position: int, node: int) -> None:
        """Writes the copies for a position."""
        for read in self.reads.get(node, ()):
            operation = self.copies.ops.ops[read]
            if read not in self.names:
                self.names[read] = self.copies.tensor((read, 0))
            name = f"{_SCOPE}/state_{self.num_written}"
            self.num_written += 1
            waits = self.policy.wait_for_all(position)
            begin = make_view(f"{name}/begin", operation.outputs[0], HOST, [self.names[read], *waits])
            device = operation.device or f"/device:{find_default_device()}"
            self.copies.written.extend([begin, make_view(name, operation.outputs[0], device, [f"{begin.name}:0"])])
            self.copies.renamed[self.names[read]] = f"{name}:0"
