"""Measures the memory of a step, by the allocator's peak and by the runtime's own allocation records.

TensorFlow's CPU allocator keeps statistics only when oneDNN is enabled (`TF_ENABLE_ONEDNN_OPTS=1` before TensorFlow is
imported; the default only on newer CPUs). It does not count allocations under 256 KiB, and it counts chunks, which may
be larger than the requests. The records contain every allocation that a kernel requests, and need no support by the
allocator. Making them runs the step in a session of its own, on copies of its variables and lookup tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.step_stats_pb2 import AllocationRecord, StepStats

from checkmate_tf.errors import ProfileError
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.tf_private import get_session_config

# These operations do not change a lookup table.
_TABLE_READERS = frozenset({"LookupTableFindV2", "LookupTableSizeV2"})


def measure_allocator_peak_bytes(run: Callable[[], object], *, device: str = "CPU:0") -> int | None:
    """Returns the most bytes in use on the device while `run` runs, less those in use before.

    Returns None if the device does not report them.
    """
    before = reset_peak_bytes(device)
    if before is None:
        return None
    run()
    return read_peak_bytes(device) - before


def reset_peak_bytes(device: str) -> int | None:
    """Begins a new peak on the device, and returns the bytes in use now; None if the device does not report them."""
    try:
        in_use = tf.config.experimental.get_memory_info(device)["current"]
        tf.config.experimental.reset_memory_stats(device)
    except (ValueError, RuntimeError, tf.errors.OpError):
        return None
    return int(in_use)


def read_peak_bytes(device: str) -> int:
    """Returns the most bytes in use on the device since the peak was reset."""
    return int(tf.config.experimental.get_memory_info(device)["peak"])


@dataclass(frozen=True)
class Allocation:
    """A buffer that a kernel requested: by whom, its size, and when it was allocated and freed (None: at the end)."""

    op: str
    size_bytes: int
    start_us: int
    end_us: int | None


def find_allocation_peak_bytes(allocations: Sequence[Allocation]) -> int:
    """Returns the most bytes that are allocated at once. Within one microsecond, frees count before allocations."""
    events = [(a.start_us, 1, a.size_bytes) for a in allocations]
    events += [(a.end_us, 0, -a.size_bytes) for a in allocations if a.end_us is not None]
    changes = [change for _, _, change in sorted(events)]
    return max(0, int(np.cumsum(changes).max())) if changes else 0


def record_allocations(
    function: tf.types.experimental.ConcreteFunction, arguments: Sequence[tf.Tensor], *, warm: bool = False
) -> tuple[Allocation, ...]:
    """Records every allocation of one run of a function, as the runtime reports them, on the device that training uses.

    Arguments, captured tensors, variables and lookup tables are not among them. The function runs in a session, on
    copies of its variables and tables, with the same graph optimizations and executor, and changes nothing outside.

    Args:
        arguments: flat tensors for the function's own arguments.
        warm: record the second run, because the first prepares kernels. For functions whose operations may run side by
            side.

    Raises ProfileError if the function captures something that cannot be copied, such as an iterator, or a table that
    it changes.
    """
    inputs = [*arguments, *function.captured_inputs]
    contents = {
        placeholder.op.name: _read_resource(placeholder, value)
        for placeholder, value in zip(function.inputs, inputs, strict=True)
        if value.dtype == tf.resource
    }
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph, config=get_session_config()) as session:
        initial: dict[tf.Tensor, np.ndarray] = {}
        assigned = []
        for handle, tensors in _import_body(function, contents):
            fed = [tf.compat.v1.placeholder(tensor.dtype, tensor.shape) for tensor in tensors]
            initial |= {feed: tensor.numpy() for feed, tensor in zip(fed, tensors, strict=True)}
            assigned.append(_assign(handle, fed))
        feeds = {
            placeholder.name: value.numpy()
            for placeholder, value in zip(function.inputs, inputs, strict=True)
            if value.dtype != tf.resource and _exists(graph, placeholder.op.name)
        }
        fetches = [tensor.name for tensor in function.outputs if tensor.name not in feeds]
        # A session keeps all results of a loop that it runs directly until the last iteration. A function does not.
        with tf.control_dependencies([graph.get_operation_by_name(op.name) for op in function.graph.control_outputs]):
            target = tf.no_op()
        # The graph is complete before the first run, because TensorFlow warns of later changes.
        session.run(assigned, initial)  # all in one run, because each run prepares the whole graph again
        options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.SOFTWARE_TRACE)
        recorded = tf.compat.v1.RunMetadata()
        if warm:
            session.run([fetches, target], feeds)
        session.run([fetches, target], feeds, options=options, run_metadata=recorded)
    return read_allocations(recorded.step_stats, find_default_device())


def record_peak_bytes(
    function: tf.types.experimental.ConcreteFunction, arguments: Sequence[tf.Tensor], *, warm: bool = False
) -> int:
    """Returns the most bytes that one run of a function requests and holds at once.

    Arguments and captured tensors do not count.
    """
    return find_allocation_peak_bytes(record_allocations(function, arguments, warm=warm))


def _import_body(
    function: tf.types.experimental.ConcreteFunction, contents: Mapping[str, Sequence[tf.Tensor]]
) -> list[tuple[tf.Tensor, Sequence[tf.Tensor]]]:
    """Imports the body of a function into the default graph, on new resources. Returns their handles and contents."""
    source: GraphDef = function.graph.as_graph_def()
    body = GraphDef(versions=source.versions, library=source.library)
    body.node.extend(definition for definition in source.node if definition.name not in contents)
    read = {name.partition(":")[0] for definition in body.node for name in definition.input}
    mapped, resources = {}, []
    for number, (name, tensors) in enumerate(contents.items()):
        if name in read:
            mapped[f"{name}:0"] = _make_resource(tensors, f"resource_{number}")
            resources.append((mapped[f"{name}:0"], tensors))
    tf.graph_util.import_graph_def(body, input_map=mapped, name="")
    return resources


def _read_resource(placeholder: tf.Tensor, handle: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Returns the value of a variable, or the keys and the values of a lookup table that a function only reads."""
    data = getattr(handle, "_handle_data", None)
    if data is not None and data.is_set and len(data.shape_and_type) == 1:
        return (tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.as_dtype(data.shape_and_type[0].dtype)),)
    finds = [op for op in placeholder.consumers() if op.type == "LookupTableFindV2"]
    if finds and all(op.type in _TABLE_READERS for op in placeholder.consumers()):
        kinds = {"Tkeys": finds[0].get_attr("Tin"), "Tvalues": finds[0].get_attr("Tout")}
        keys, values = tf.raw_ops.LookupTableExportV2(table_handle=handle, **kinds)
        if values.shape.rank == 1:
            return keys, values
    raise ProfileError(
        f"captured resource {handle!r} is neither a variable nor a table of single values that the step only reads: "
        "its step cannot run in a session of its own"
    )


def _make_resource(contents: Sequence[tf.Tensor], name: str) -> tf.Tensor:
    """Makes the handle of an empty variable or table for contents from `_read_resource`."""
    if len(contents) == 1:
        return tf.raw_ops.VarHandleOp(dtype=contents[0].dtype, shape=contents[0].shape, shared_name=name)
    keys, values = contents
    return tf.raw_ops.HashTableV2(key_dtype=keys.dtype, value_dtype=values.dtype, shared_name=name)


def _assign(handle: tf.Tensor, contents: Sequence[tf.Tensor]) -> tf.Operation:
    """Writes its contents to a new variable or table."""
    if len(contents) == 1:
        return tf.raw_ops.AssignVariableOp(resource=handle, value=contents[0])
    return tf.raw_ops.InitializeTableV2(table_handle=handle, keys=contents[0], values=contents[1])


def _exists(graph: tf.Graph, name: str) -> bool:
    try:
        graph.get_operation_by_name(name)
    except KeyError:
        return False
    return True


def read_allocations(stats: StepStats, device: str) -> tuple[Allocation, ...]:
    """Lists the allocations in the memory of a device, such as "GPU:0".

    Records come in pairs: a kernel's allocations with positive sizes, and the release of each with a negative one. A
    kernel on a GPU also allocates host memory, for copies and for small integers.
    """
    found = []
    for part in stats.dev_stats:
        if not part.device.endswith(f"device:{device}"):
            continue
        for node in part.node_stats:
            for memory in node.memory:
                if device.startswith("CPU") or not _is_of_host(memory.allocator_name):
                    found += _pair_records(node.node_name, memory.allocation_records)
    return tuple(sorted(found, key=lambda allocation: allocation.start_us))


def _is_of_host(allocator: str) -> bool:
    """Returns whether an allocator, such as "GPU_0_bfc", "gpu_host_bfc" or "cpu", allocates host memory."""
    return "host" in allocator or "cpu" in allocator.lower()


def _pair_records(op: str, records: Sequence[AllocationRecord]) -> list[Allocation]:
    ends: dict[int, list[int]] = {}
    for record in records:
        if record.alloc_bytes < 0:
            ends.setdefault(-record.alloc_bytes, []).append(record.alloc_micros)
    for times in ends.values():
        times.sort(reverse=True)
    return [
        Allocation(
            op,
            record.alloc_bytes,
            record.alloc_micros,
            ends[record.alloc_bytes].pop() if ends.get(record.alloc_bytes) else None,
        )
        for record in sorted(records, key=lambda record: record.alloc_micros)
        if record.alloc_bytes > 0
    ]
