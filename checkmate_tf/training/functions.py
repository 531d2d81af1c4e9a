"""Rematerializes functions outside Keras's `fit`, for custom training loops."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.graph.step import GraphStep
from checkmate_tf.executors.step import ResidentBytes, Step
from checkmate_tf.executors.xla.compilers import choose_compiler
from checkmate_tf.executors.xla.step import XlaStep
from checkmate_tf.measurement.measured_steps import plan_alone
from checkmate_tf.planning.options import Options, Request
from checkmate_tf.planning.search import find_plan
from checkmate_tf.progress import show_planning
from checkmate_tf.reports.plan import Plan
from checkmate_tf.rewriting.body import is_jit_compiled
from checkmate_tf.tf_private import call_flat, get_resource_handle_data, make_variable_handle
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.tracing.semantics import FUNCTION_CALL_TYPES, is_stateful_type, list_reached_op_types
from checkmate_tf.training.batches import count_tensor_bytes
from checkmate_tf.training.model_checks import check_eager


@dataclass(frozen=True)
class RewrittenFunction:
    """A rewritten function. It takes the arguments of the original one and has the same results and effects.

    Args:
        plan: the plan that it follows.

    Example:

    >>> weights = tf.Variable(tf.eye(64))
    >>> step = tf.function(lambda x: weights.assign_sub(tf.matmul(x, x, transpose_a=True)))
    >>> concrete = step.get_concrete_function(tf.TensorSpec((8, 64)))
    >>> rewritten = rewrite_function(concrete, budget="100%", measure=False, progress=False)
    >>> rewritten(tf.zeros((8, 64))).shape, rewritten.plan.overhead
    (TensorShape([64, 64]), 0.0)
    """

    plan: Plan
    function: EmittedFunction

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@plan_alone()
def rewrite_function(
    concrete_function: Any,
    *,
    budget: int | float | str = "auto",
    time_limit_s: float = 60.0,
    options: Options = Options(),
    measure: bool = True,
    progress: bool = True,
) -> RewrittenFunction:
    """Rewrites a function so that it stays within a memory budget, for custom training loops.

    If XLA compiles the function, as for `tf.function(jit_compile=True)`, the peak of the plan is that of XLA's buffer
    assignment, and XLA compiles the rewritten function, too.

    Args:
        concrete_function: `tf.function(step).get_concrete_function(...)` with static shapes. It computes the gradients
            of a step, or is a whole step with its optimizer updates. It may take variables as arguments.
        budget: bytes, "6GiB", "60%" of the original function's peak, or "auto". It covers the function's arguments and
            the variables that it reads, and no other memory of the caller.
        time_limit_s: seconds for all runs of the solver together.
        options: the solver, the order of computation, the source of costs, and the seed; see `Options`.
        measure: whether to run the function on zeros, and to lower the target until the measured peak is within the
            budget. Its variables are restored afterwards. A function with effects other than on variables (collectives,
            iterators, random numbers with a state of their own) never runs, and its peak is only predicted.
        progress: whether to show progress bars on standard error, if that is a terminal.

    Returns:
        The rewritten function, with its plan.

    Raises:
        UnsupportedModelError: for anything other than a ConcreteFunction of static shapes.
        BudgetError: if the budget cannot be read.
        InfeasibleBudgetError: if no plan within the budget was found.

    Example:

    >>> weights = tf.Variable(tf.eye(64))
    >>> def compute_gradients(x):
    ...     with tf.GradientTape() as tape:
    ...         hidden = x
    ...         for _ in range(8):
    ...             hidden = tf.tanh(hidden @ weights)
    ...     return tape.gradient(hidden, weights)
    >>> concrete = tf.function(compute_gradients).get_concrete_function(tf.TensorSpec((512, 64)))
    >>> quick = {"options": Options(costs="flops"), "measure": False, "progress": False}
    >>> rewritten = rewrite_function(concrete, budget="80%", **quick)
    >>> rewritten(tf.ones((512, 64))).shape
    TensorShape([64, 64])
    """
    request = Request(budget, time_limit_s, options, measure, progress)
    check_eager()
    if not hasattr(concrete_function, "structured_input_signature"):
        raise UnsupportedModelError(
            f"{type(concrete_function).__name__} is not a ConcreteFunction; "
            "pass tf.function(step).get_concrete_function(*specs)"
        )
    inputs = concrete_function.inputs[: len(concrete_function.inputs) - len(concrete_function.captured_inputs)]
    arguments = [_Argument.of(each) for each in inputs]
    if not all(each.spec.shape.is_fully_defined() for each in arguments):
        shapes = ", ".join(f"{each.spec.name} {each.spec.shape}" for each in arguments)
        raise UnsupportedModelError(f"the function has arguments of open shape ({shapes}); trace it with static shapes")
    if not _changes_only_variables(concrete_function.graph):
        request = replace(request, measure=False)
    with tf.init_scope(), show_planning(shown=progress) as bar:
        ready = find_plan(_make_step(concrete_function, arguments, request), request, bar)
    return RewrittenFunction(Plan(ready.planned), ready.function)


@dataclass(frozen=True)
class _Argument:
    """An argument of a function: a tensor, or a variable, which the function takes by its handle.

    `spec` is the spec of the tensor or of the variable's value.
    """

    spec: tf.TensorSpec
    is_variable: bool

    @staticmethod
    def of(tensor: tf.Tensor) -> "_Argument":
        """Returns an argument of a traced function. Raises UnsupportedModelError for a resource that is no variable."""
        if tensor.dtype != tf.resource:
            return _Argument(tf.TensorSpec(tensor.shape, tensor.dtype, tensor.op.name), is_variable=False)
        handle_data = get_resource_handle_data(tensor)
        if not handle_data.is_set or len(handle_data.shape_and_type) != 1:
            raise UnsupportedModelError(
                f"argument {tensor.op.name} is a resource but not a variable; let the function capture it instead"
            )
        held = handle_data.shape_and_type[0]
        return _Argument(tf.TensorSpec(tf.TensorShape(held.shape), held.dtype, tensor.op.name), is_variable=True)

    def make_zeros(self) -> tf.Tensor:
        """Makes a tensor of zeros, or the handle of a variable of zeros."""
        zeros = tf.zeros(self.spec.shape, self.spec.dtype)
        if not self.is_variable:
            return zeros
        handle = make_variable_handle(zeros)
        tf.raw_ops.AssignVariableOp(resource=handle, value=zeros)
        return handle


def _make_step(function: Any, arguments: Sequence[_Argument], request: Request) -> Step:
    """Returns a function as a step of its executor."""
    variables = [each.spec for each in arguments if each.is_variable]
    tensors = [each.spec for each in arguments if not each.is_variable]
    resident = ResidentBytes(
        parameters=sum(map(count_tensor_bytes, [*function.variables, *variables])),
        batch=sum(map(count_tensor_bytes, tensors)),
    )
    name = function.graph.name
    request.check_device(name, compiled=is_jit_compiled(function))
    if is_jit_compiled(function):
        compiler = choose_compiler(request.options.find_device())
        training_graph = extract(function, name=name, resident_bytes=resident.total)
        handles = {i: each.make_zeros() for i, each in enumerate(arguments) if each.is_variable}
        whole_step = partial(_flatten_arguments, handles)
        return XlaStep.of(training_graph, whole_step, tensors, resident=resident, compiler=compiler)
    given = [each.make_zeros() for each in arguments] if request.measure else None
    return GraphStep.of(function, name=name, resident=resident, arguments=given)


def _changes_only_variables(graph: tf.Graph) -> bool:
    """Returns whether a run of a function has no effects other than on variables."""
    stateful = {
        kind for kind in list_reached_op_types(graph) if is_stateful_type(kind) and kind not in FUNCTION_CALL_TYPES
    }
    return all(kind.startswith(("Assign", "Placeholder", "Read", "Resource", "VarHandle")) for kind in stateful)


def _flatten_arguments(handles: Mapping[int, tf.Tensor], function: EmittedFunction) -> Callable[..., Any]:
    """Returns an emitted function as a function of its flat tensors.

    `handles` are the handles of arguments that are variables, by position. XLA compiles a function for the shapes of
    its tensors, and for the variables that it captures.
    """

    def call(*tensors: tf.Tensor) -> Any:
        remaining, number = iter(tensors), len(tensors) + len(handles)
        return call_flat(function.function, [handles[i] if i in handles else next(remaining) for i in range(number)])

    return call
