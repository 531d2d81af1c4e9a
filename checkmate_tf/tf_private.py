"""Contains every use of private names of TensorFlow. No other module imports from `tensorflow.python` or
`tensorflow.compiler`.

Each function does something that the public interface does not offer. `tests/test_private_names.py` has a test of each,
which says what breaks if TensorFlow changes it.
"""

import inspect
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from checkmate_tf.errors import CheckmateError
from checkmate_tf.interrupts import hold_interrupts

try:
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops
    from tensorflow.compiler.xla.service.hlo_pb2 import (
        HeapSimulatorTrace,
        HloInstructionProto,
        HloModuleProto,
        HloProto,
    )
    from tensorflow.compiler.xla.xla_data_pb2 import FrontendAttributes, PrimitiveType
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.op_def_pb2 import OpDef
    from tensorflow.python.autograph.core import ag_ctx
    from tensorflow.python.client import device_lib
    from tensorflow.python.eager import context
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
    from tensorflow.python.framework import op_def_registry, ops
    from tensorflow.python.framework.func_graph import FuncGraph, func_graph_from_py_func
    from tensorflow.python.ops import resource_variable_ops, script_ops, while_v2
    from tensorflow.python.ops.handle_data_util import copy_handle_data, get_resource_handle_data
    from tensorflow.python.util import _pywrap_util_port
except ImportError as error:
    raise CheckmateError(
        f"TensorFlow {tf.__version__} lacks a part that checkmate_tf uses ({error}): "
        "pip install 'tensorflow>=2.18,<2.22'"
    ) from error

__all__ = [
    "XLA_BARRIER_TYPE",
    "XLA_RULES_RELEASE",
    "ConcreteFunction",
    "FuncGraph",
    "HeapSimulatorTrace",
    "HloInstructionProto",
    "HloModuleProto",
    "HloProto",
    "PrimitiveType",
    "call_flat",
    "copy_handle_data",
    "find_function_definition",
    "find_memory_limit",
    "find_op_definition",
    "get_creation_number",
    "get_loop_body",
    "get_replica_number",
    "get_resource_handle_data",
    "get_session_config",
    "has_onednn",
    "hold",
    "hold_functions",
    "is_reference",
    "keep_mode",
    "list_dataset_stages",
    "list_traced_frames",
    "make_barrier",
    "make_variable_handle",
    "place_in_memory",
    "register_call",
    "set_variable_handle",
    "trace",
]

XLA_BARRIER_TYPE = "XlaOptimizationBarrier"

# The release of TensorFlow whose XLA the rules of `executors/xla/rules` describe.
XLA_RULES_RELEASE = "2.21"


def call_flat(function: tf.types.experimental.ConcreteFunction, arguments: Sequence[tf.Tensor]) -> Any:
    """Calls a function on its flat arguments, regardless of their nesting."""
    return function._call_flat(list(arguments), function.captured_inputs)


def get_creation_number(tensor: tf.Tensor) -> int:
    """Returns a number that is larger for tensors that were created later."""
    return tensor._id


def find_function_definition(graph: tf.Graph, name: str) -> FunctionDef | None:
    """Returns the definition of a function known to `graph` or an outer one; None for an unknown name."""
    current = graph
    while current is not None:
        function = current._functions.get(name)
        if function is not None:
            return getattr(function, "cached_definition", None) or function.function_def
        current = getattr(current, "outer_graph", None)
    return None


def hold_functions(graph: FuncGraph, source: FuncGraph) -> None:
    """Keeps the functions that a graph calls alive as long as another graph that calls them.

    TensorFlow deletes a traced function, such as the body of a loop, together with the graph in which it was traced.
    """
    graph.held_functions = [*_list_held(graph), *_list_held(source), *source._functions.values()]


def register_call(call: Any) -> str:
    """Registers the function of operations of type `PyFunc`, and returns its token. It lives as long as `call`."""
    return script_ops._py_funcs.insert(call)


def hold(graph: FuncGraph, held: Sequence[Any]) -> None:
    """Keeps objects alive as long as a graph, or another one that calls it (see `hold_functions`)."""
    graph.held_functions = [*_list_held(graph), *held]


def _list_held(graph: FuncGraph) -> list[Any]:
    return getattr(graph, "held_functions", [])


def find_op_definition(op_type: str) -> OpDef | None:
    """Returns TensorFlow's definition of a type of operation: attributes, statefulness; None for an unknown one."""
    return op_def_registry.get(op_type)


def list_traced_frames(op: tf.Operation) -> list[Any]:
    """Lists the frames of Python's stack from the traced function to the operation.

    Each has a `filename`, a `lineno` and the `name` of a function.
    """
    frames = list(op.traceback)
    tracing = inspect.unwrap(func_graph_from_py_func).__code__
    at = (i for i, frame in enumerate(frames) if (frame.filename, frame.name) == (tracing.co_filename, tracing.co_name))
    return frames[max(at, default=-1) + 1 :]


def is_reference(dtype: tf.DType) -> bool:
    """Returns whether a type is that of a TensorFlow 1 variable, whose reads share its buffer."""
    return dtype._is_ref_dtype


def get_loop_body(loop: tf.Operation) -> FuncGraph:
    """Returns one iteration of a while loop, as a graph whose inputs and outputs are those of the loop."""
    return while_v2._get_graph(loop, "body", "_body_graph")


def make_barrier(tensor: tf.Tensor) -> tf.Tensor:
    """Returns an equal tensor that XLA does not recognize as the given one."""
    return gen_xla_ops.xla_optimization_barrier([tensor])[0]


def place_in_memory(tensor: tf.Tensor, memory: str) -> tf.Tensor:
    """Returns a copy of a tensor of static shape that XLA puts in "pinned_host" memory, or in that of the "device"."""
    attributes = FrontendAttributes()
    attributes.map["_xla_buffer_placement"] = memory
    (placed,) = gen_xla_ops.xla_custom_call_v2(
        operands=[tensor],
        call_target_name="annotate_device_placement",
        backend_config="",
        has_side_effect=True,
        result_dtypes=[tensor.dtype],
        result_shapes=[tensor.shape],
    )
    placed.op._set_attr("_XlaFrontendAttributes", tf.compat.v1.AttrValue(s=attributes.SerializeToString()))
    return placed


def make_variable_handle(tensor: tf.Tensor) -> tf.Tensor:
    """Makes the handle of a new, empty variable with a tensor's type and shape, outside of any graph."""
    return resource_variable_ops.eager_safe_variable_handle(tensor, tensor.shape, None, "variable", graph_mode=False)


def set_variable_handle(variable: Any, handle: tf.Tensor) -> None:
    """Makes a variable read and write the memory behind another handle."""
    variable._handle = handle


def get_replica_number(context: tf.distribute.ReplicaContext) -> int:
    """Returns the number of a replica while its step is traced, as a Python integer."""
    return context._replica_id


def find_memory_limit(kind: str, index: str) -> int | None:
    """Returns the bytes that TensorFlow may take on a device, such as "GPU" and "0"; None without such a device."""
    for local in device_lib.list_local_devices(get_session_config()):
        if local.name.endswith(f"{kind}:{index}"):
            return local.memory_limit
    return None


def get_session_config() -> Any:
    """Returns the settings with which TensorFlow created its devices, a ConfigProto: visible GPUs and their limits.

    With other settings, a GPU would be another one, or divided differently, which TensorFlow refuses.
    """
    return context.context().config


def has_onednn() -> bool:
    """Returns whether oneDNN's kernels and its allocator are enabled."""
    return _pywrap_util_port.IsMklEnabled()


@dataclass(frozen=True)
class DatasetStage:
    """A stage of a tf.data pipeline, which yields elements of a spec. A shuffle buffer holds `num_shuffled` of them."""

    element_spec: Any
    num_shuffled: int


def list_dataset_stages(iterator: Any) -> Iterator[DatasetStage]:
    """Lists the stages of the pipeline behind an iterator, each before those that it reads itself.

    Returns none for an iterator that is not a tf.data.Iterator.
    """
    waiting = [dataset for dataset in (getattr(iterator, "_dataset", None),) if dataset is not None]
    while waiting:
        dataset = waiting.pop()
        is_shuffle = "Shuffle" in type(dataset).__name__
        size = tf.get_static_value(dataset._buffer_size) if is_shuffle and hasattr(dataset, "_buffer_size") else 0
        yield DatasetStage(dataset.element_spec, int(size or 0))
        waiting += dataset._inputs()


@contextmanager
def keep_mode() -> Iterator[None]:
    """Restores the mode of TensorFlow in this thread: eager mode, graphs, device, name scope, conversion by AutoGraph.

    An interrupt in the first or last line of one of TensorFlow's context managers leaves the mode that it entered.
    """
    eager, stacks = context.context(), [ops._default_graph_stack.stack, context.context().context_switches.stack]
    stacks.append(ag_ctx._control_ctx())
    data, before = eager._thread_local_data, [list(stack) for stack in stacks]
    values = {name: getattr(data, name) for name in ("is_eager", "device_name", "device_spec", "scope_name")}
    try:
        yield
    finally:
        with hold_interrupts():
            for name, value in values.items():
                setattr(data, name, value)
            for stack, entries in zip(stacks, before, strict=True):
                stack[:] = entries


def trace(function: Any, specs: Sequence[tf.TensorSpec]) -> ConcreteFunction:
    """Traces a `tf.function`. The result, and everything that was traced, can be garbage-collected.

    TensorFlow's registry keeps everything that `tf.custom_gradient` registers in a trace, and through it the whole
    graph. Each trace of a Keras optimizer registers one. Here, the graph holds its own gradients, and the registry
    finds them in the graph as long as that lives.
    """
    registered = ops.gradient_registry._registry
    before = set(registered)
    try:
        concrete = function.get_concrete_function(*specs)
    except SystemError as error:
        # An interrupt may leave an operation without its outputs, on which TensorFlow fails.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise
    graph = concrete.graph
    marked = [op.node_def.attr for op in graph.get_operations() if op.type == "IdentityN"]
    names = {attributes["_gradient_op_type"].s.decode() for attributes in marked} & registered.keys() - before
    graph.custom_gradients = {name: registered[name]["type"] for name in names}
    for name in names:
        registered[name]["type"] = partial(_compute_gradient, weakref.ref(graph), name)
        weakref.finalize(graph, registered.pop, name).atexit = False
    return concrete


def _compute_gradient(graph: weakref.ref, name: str, op: tf.Operation, *gradients: Any) -> Any:
    return graph().custom_gradients[name](op, *gradients)  # type: ignore[union-attr]
