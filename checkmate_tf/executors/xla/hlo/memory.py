"""Compiles a step with XLA, and reads the bytes of its buffer assignment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate_tf.tf_private import HloProto, trace


@dataclass(frozen=True)
class XlaMemory:
    """The bytes of a compiled step's buffers, by their purpose.

    A buffer that is both an argument and a result counts as an argument.
    """

    temporary_bytes: int
    output_bytes: int
    argument_bytes: int

    @property
    def peak_bytes(self) -> int:
        return self.temporary_bytes + self.output_bytes + self.argument_bytes


def compile_step(step: Any, specs: Sequence[tf.TensorSpec]) -> HloProto:
    """Traces a step, and compiles it with XLA for arguments of static shapes, without running it.

    Returns the optimized module with its buffer assignment, for the device that would run the step.
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
