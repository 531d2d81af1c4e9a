"""Lists the kernels of a compiled module, with the TensorFlow operations that each computes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from checkmate_tf.tf_private import HeapSimulatorTrace, HloInstructionProto, HloProto, PrimitiveType

# Instructions without a buffer of their own: their buffer is an operand's, or is not temporary.
_NO_BUFFER = frozenset({"bitcast", "constant", "get-tuple-element", "parameter", "tuple"})
_PRODUCTS = frozenset({"convolution", "dot"})
# Instructions that call a computation of scalars. XLA shares it among them, with the name of the first.
_OF_SCALARS = frozenset({"reduce", "reduce-window", "scatter", "select-and-scatter", "sort"})
_BITS_PER_BYTE = 8
_SHARE_WITH = HeapSimulatorTrace.Event.SHARE_WITH


@dataclass(frozen=True)
class Kernel:
    """An instruction of a compiled module that writes a buffer: a fusion, a convolution, a copy.

    Args:
        names: of the TensorFlow operations whose results it writes; empty for an instruction that XLA added.
        inside: names of all the operations that it computes.
        size_bytes: of its result.
        scratch_bytes: memory that it needs besides, as the convolutions of a GPU's library do.
        reads: positions of the kernels whose results it reads.
        is_constant: it reads nothing, not even an argument of the step.
        is_returned: it writes a result of the step.
        buffer: the number of the buffer that it writes. Kernels have the same number if one takes over the other's.
    """

    names: frozenset[str]
    inside: frozenset[str]
    size_bytes: int
    scratch_bytes: int
    reads: tuple[int, ...]
    is_constant: bool
    is_returned: bool
    buffer: int


def list_kernels(module: HloProto) -> tuple[Kernel, ...]:
    """Lists the kernels of a compiled module in the order in which they run."""
    hlo = module.hlo_module
    by_id = {computation.id: computation for computation in hlo.computations}
    entry = by_id[hlo.entry_computation_id]
    instructions = {instruction.id: instruction for instruction in entry.instructions}
    found: list[Kernel] = []
    written_by: dict[int, tuple[int, ...]] = {}  # instruction -> the kernels whose results it represents
    constants: set[int] = set()
    returned, buffers = _list_returned(module), _list_shared(module)
    for number in hlo.schedule.sequences[hlo.entry_computation_id].instruction_ids:
        instruction = instructions[number]
        reads = tuple(dict.fromkeys(k for operand in instruction.operand_ids for k in written_by[operand]))
        if instruction.opcode != "parameter" and constants.issuperset(instruction.operand_ids):
            constants.add(number)
        if instruction.opcode in _NO_BUFFER:
            written_by[number] = reads
            continue
        names = {
            *_list_op_names(instruction),
            *(n for root in _list_fused_roots(by_id, instruction) for n in _list_op_names(root)),
        }
        inner = {n for inner in _list_called(by_id, instruction) for n in _list_op_names(inner)}
        written_by[number] = (len(found),)
        scratch_bytes = _count_scratch_bytes(instruction)
        size_bytes = 0 if instruction.opcode == "while" else count_bytes(instruction.shape) - scratch_bytes
        found.append(
            Kernel(
                frozenset(names),
                frozenset(names | inner),
                size_bytes,
                scratch_bytes,
                reads,
                is_constant=number in constants,
                is_returned=number in returned,
                buffer=buffers.get(number, -number),
            )
        )
    return tuple(found)


def _list_returned(module: HloProto) -> frozenset[int]:
    """Returns the instructions that write to a buffer of a result or an argument of the step."""
    assignment = module.buffer_assignment
    buffers = {
        buffer.logical_buffer_id
        for allocation in assignment.buffer_allocations
        if allocation.maybe_live_out or allocation.is_entry_computation_parameter
        for buffer in allocation.assigned
    }
    return frozenset(b.defined_at.instruction_id for b in assignment.logical_buffers if b.id in buffers)


def _list_shared(module: HloProto) -> dict[int, int]:
    """Maps each instruction that shares a buffer with another one to that buffer."""
    defined = {b.id: b.defined_at.instruction_id for b in module.buffer_assignment.logical_buffers}
    shared: dict[int, int] = {}
    for heap in module.buffer_assignment.heap_simulator_traces:
        for event in heap.events:
            if event.kind == _SHARE_WITH:
                first = event.share_with_canonical_id
                shared[defined[event.buffer_id]] = shared.setdefault(defined[first], first)
    return shared


def list_product_names(module: HloProto) -> tuple[str, ...]:
    """Lists the TensorFlow name of each convolution and product of matrices in a compiled module."""
    return tuple(
        next(_list_op_names(instruction), "")
        for computation in module.hlo_module.computations
        for instruction in computation.instructions
        if instruction.opcode in _PRODUCTS
    )


def count_bytes(shape: Any) -> int:
    """Returns the bytes of an array, or of all arrays of a tuple, from its shape in a module."""
    if shape.tuple_shapes:
        return sum(count_bytes(part) for part in shape.tuple_shapes)
    elements = 1
    for dimension in shape.dimensions:
        elements *= dimension
    return elements * _find_element_bytes(shape.element_type)


def _count_scratch_bytes(instruction: HloInstructionProto) -> int:
    """Returns the scratch bytes of a call of a library: the last of its results, untyped bytes."""
    parts = instruction.shape.tuple_shapes
    is_scratch = instruction.opcode == "custom-call" and parts and parts[-1].element_type == PrimitiveType.Value("U8")
    return count_bytes(parts[-1]) if is_scratch else 0


def _find_element_bytes(element_type: int) -> int:
    """Returns the bytes of an element from its type's name, such as F32 or BF16; 1 for PRED, 0 for tokens."""
    name = PrimitiveType.Name(element_type)
    if name == "PRED" or name.startswith("F8"):
        return 1
    bits = int("".join(filter(str.isdigit, name)) or 0)
    return max(bits // _BITS_PER_BYTE, 1) if bits else 0


def _list_called(by_id: dict[int, Any], instruction: HloInstructionProto) -> Iterator[Any]:
    """Lists the instructions of the computations that an instruction calls, at any depth, except those of scalars."""
    if instruction.opcode in _OF_SCALARS:
        return
    for number in instruction.called_computation_ids:
        for inner in by_id[number].instructions:
            yield inner
            yield from _list_called(by_id, inner)


def _list_fused_roots(by_id: dict[int, Any], instruction: HloInstructionProto) -> Iterator[Any]:
    """Lists the instructions whose results a fusion yields."""
    if instruction.opcode != "fusion":
        return
    fused = by_id[instruction.called_computation_ids[0]]
    instructions = {inner.id: inner for inner in fused.instructions}
    root = instructions[fused.root_id]
    if root.opcode == "tuple":
        yield from (instructions[operand] for operand in root.operand_ids)
    else:
        yield root


def _list_op_names(instruction: HloInstructionProto) -> Iterator[str]:
    """Lists an instruction's TensorFlow names, without their caller. XLA joins those of merged instructions by ";"."""
    for name in instruction.metadata.op_name.split(";"):
        parts = name.split("/")
        while parts and parts[0] in ("StatefulPartitionedCall", "PartitionedCall"):
            parts.pop(0)
        if parts and parts != [""]:
            yield "/".join(parts)
