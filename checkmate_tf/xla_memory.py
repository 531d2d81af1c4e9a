"""What XLA compiles a step to: the bytes that its buffer assignment takes, and which tensors it materializes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.compiler.xla.service.hlo_pb2 import HloInstructionProto, HloProto

_NO_BUFFER = frozenset({"bitcast", "constant", "get-tuple-element", "parameter", "tuple"})


@dataclass(frozen=True)
class XlaMemory:
    """Bytes of a compiled step's buffers, by what they are for.

    Buffers that XLA lends to the caller both as argument and result count as arguments.
    """

    temporary_bytes: int
    output_bytes: int
    argument_bytes: int

    @property
    def peak_bytes(self) -> int:
        return self.temporary_bytes + self.output_bytes + self.argument_bytes


def compiled(step: Any, specs: Sequence[tf.TensorSpec]) -> HloProto:
    """The optimized module, with its buffer assignment, of `step` compiled by XLA for arguments of static shapes.

    Nothing is executed: `step` is traced and compiled for the device that would run it.
    """
    function = tf.function(step, jit_compile=True, autograph=False)
    serialized = function.experimental_get_compiler_ir(*specs)(stage="optimized_hlo_proto_serialized")
    return HloProto.FromString(serialized)


def xla_memory(module: HloProto) -> XlaMemory:
    """The sizes of a compiled module's buffers."""
    temporary = output = argument = 0
    for buffer in module.buffer_assignment.buffer_allocations:
        if buffer.is_entry_computation_parameter:
            argument += buffer.size
        elif buffer.maybe_live_out:
            output += buffer.size
        elif not buffer.is_constant and not buffer.is_thread_local:
            temporary += buffer.size
    return XlaMemory(temporary, output, argument)


def materialized_ops(module: HloProto) -> frozenset[str]:
    """Names of the TensorFlow operations whose results the compiled module writes to a buffer.

    The others exist only inside fusions. A fusion is known by the operation at its root.
    """
    hlo = module.hlo_module
    by_id = {computation.id: computation for computation in hlo.computations}
    names: set[str] = set()
    for instruction in by_id[hlo.entry_computation_id].instructions:
        if instruction.opcode not in _NO_BUFFER:
            names.update(_op_names(instruction))
            names.update(name for root in _fused_roots(by_id, instruction) for name in _op_names(root))
    return frozenset(names)


def count_ops(module: HloProto, opcodes: frozenset[str]) -> int:
    """Instructions of a compiled module, in all its computations, with one of these HLO opcodes."""
    return sum(
        instruction.opcode in opcodes
        for computation in module.hlo_module.computations
        for instruction in computation.instructions
    )


def _fused_roots(by_id: dict[int, Any], instruction: HloInstructionProto) -> Iterator[Any]:
    """The instructions whose results a fusion yields."""
    if instruction.opcode != "fusion":
        return
    fused = by_id[instruction.called_computation_ids[0]]
    instructions = {inner.id: inner for inner in fused.instructions}
    root = instructions[fused.root_id]
    if root.opcode == "tuple":
        yield from (instructions[operand] for operand in root.operand_ids)
    else:
        yield root


def _op_names(instruction: HloInstructionProto) -> Iterator[str]:
    """An instruction's TensorFlow names: XLA joins those of merged ones by ";" and puts the caller's in front."""
    for name in instruction.metadata.op_name.split(";"):
        parts = name.split("/")
        while parts and parts[0] in ("StatefulPartitionedCall", "PartitionedCall"):
            parts.pop(0)
        if parts:
            yield "/".join(parts)
