"""Compiles a step by XLA, and reads the bytes that its buffer assignment takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate_tf.tf_private import HloProto, trace


@dataclass(frozen=True)
class XlaMemory:
    """These are the bytes of a compiled step's buffers, by what they are for.

    Buffers that XLA lends to the caller both as argument and result count as arguments.
    """

    temporary_bytes: int
    output_bytes: int
    argument_bytes: int

    @property
    def peak_bytes(self) -> int:
        return self.temporary_bytes + self.output_bytes + self.argument_bytes


def compile_step(step: Any, specs: Sequence[tf.TensorSpec]) -> HloProto:
    """Compiles a step by XLA for arguments of static shapes; returns the optimized module with its buffer assignment.

    Nothing is executed: `step` is traced and compiled for the device that would run it.
    """
    function = tf.function(step, jit_compile=True, autograph=False)
    trace(function, specs)
    serialized = function.experimental_get_compiler_ir(*specs)(stage="optimized_hlo_proto_serialized")
    return HloProto.FromString(serialized)


def read_xla_memory(module: HloProto) -> XlaMemory:
    """Sums the sizes of a compiled module's buffers."""
    temporary = output = argument = 0
    for buffer in module.buffer_assignment.buffer_allocations:
        if buffer.is_entry_computation_parameter:
            argument += buffer.size
        elif buffer.maybe_live_out:
            output += buffer.size
        elif not buffer.is_constant and not buffer.is_thread_local:
            temporary += buffer.size
    return XlaMemory(temporary, output, argument)
