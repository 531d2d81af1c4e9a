"""Rematerialization of functions outside Keras's `fit`: custom training loops."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate_tf.emission import EmittedFunction, emit
from checkmate_tf.emitted_function import is_jit_compiled
from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.measuring import free_bytes, measured_bytes
from checkmate_tf.op_semantics import FUNCTION_CALL_TYPES, is_stateful_type, reached_ops
from checkmate_tf.plan import (
    CHUNK_MARGIN,
    ORDER_SPREAD,
    Options,
    Plan,
    ResidentBytes,
    make_plan,
    training_graph_of,
)
from checkmate_tf.profiling.costs import CostModel
from checkmate_tf.profiling.device import default_device
from checkmate_tf.schedule import Order
from checkmate_tf.solvers import Solver
from checkmate_tf.training_data import tensor_bytes
from checkmate_tf.xla_plan import make_xla_plan, xla_costs


@dataclass(frozen=True)
class RewrittenFunction:
    """A rewritten function: called as its source was, with the same results and effects. `plan` tells what it takes."""

    plan: Plan
    emitted: EmittedFunction

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.emitted.function(*args, **kwargs)


def rewrite_function(
    concrete_function: Any,
    *,
    budget: int | float | str,
    solver: str | Solver = "auto",
    order: Order = "fixed",
    costs: str | CostModel = "measured",
    time_limit_s: float = 60.0,
    seed: int = 0,
    measure: bool = True,
    progress: bool = True,
) -> RewrittenFunction:
    """The same function within a memory budget, for custom training loops.

    Args:
        concrete_function: `tf.function(step).get_concrete_function(...)` of static shapes: the gradients of
            a step, or a whole step with its optimizer updates.
        budget: bytes, "6GiB", "60%" of the source's peak, or "auto". It covers the variables that the function reads
            and its arguments; nothing else that the caller holds.
        measure: run the function on zeros, with its variables put back after, and plan tighter until it measures
            within the budget. Functions with effects other than on variables (collectives, iterators, random numbers
            with a state of their own) are never run: their peak is predicted only.
        progress: bars on standard error, where that is a terminal.

    A function of `tf.function(jit_compile=True)` is planned as XLA compiles it, by its buffer assignment, and gives one
    that XLA compiles.

    Raises UnsupportedModelError for anything but a ConcreteFunction of static shapes, BudgetError and
    InfeasibleBudgetError.
    """
    if not hasattr(concrete_function, "structured_input_signature"):
        raise UnsupportedModelError(
            f"{type(concrete_function).__name__} is not a ConcreteFunction; "
            "pass tf.function(step).get_concrete_function(*specs)"
        )
    measure = measure and _changes_only_variables(concrete_function.graph)
    options = Options(budget, solver, order, costs, time_limit_s, seed, measure, progress)
    arguments = concrete_function.inputs[: len(concrete_function.inputs) - len(concrete_function.captured_inputs)]
    if not all(argument.shape.is_fully_defined() for argument in arguments):
        shapes = ", ".join(f"{argument.name} {argument.shape}" for argument in arguments)
        raise UnsupportedModelError(f"the function has arguments of open shape ({shapes}); trace it with static shapes")
    resident = ResidentBytes(
        parameters=sum(map(tensor_bytes, concrete_function.variables)), batch=sum(map(tensor_bytes, arguments))
    )
    training_graph = training_graph_of(
        concrete_function,
        name=concrete_function.name,
        resident_bytes=resident.total,
        costs=xla_costs(costs) if is_jit_compiled(concrete_function) else costs,
        progress=progress,
    )

    specs = [tf.TensorSpec(argument.shape, argument.dtype) for argument in arguments]

    def free() -> int:
        return resident.total + free_bytes(default_device())

    def measured(emitted: EmittedFunction) -> int:
        with tf.init_scope():
            zeros = [tf.zeros(spec.shape, spec.dtype) for spec in specs]
            return resident.total + measured_bytes(_of_tensors(emitted.function), zeros)

    if is_jit_compiled(concrete_function):
        planned = make_xla_plan(training_graph, _of_tensors, specs, options, resident=resident, free_bytes=free)
    else:
        planned = make_plan(
            training_graph.graph,
            options,
            emit=lambda schedule, ordering: emit(training_graph, schedule, ordering=ordering),
            resident=resident,
            measure=measured if measure else None,
            margin=CHUNK_MARGIN,
            spread=ORDER_SPREAD,
            free_bytes=free,
        )
    return RewrittenFunction(planned.plan, planned.emitted)


def _changes_only_variables(graph: tf.Graph) -> bool:
    """Whether running a function leaves nothing behind but what it assigns to variables."""
    stateful = {kind for kind in reached_ops(graph) if is_stateful_type(kind) and kind not in FUNCTION_CALL_TYPES}
    return all(kind.startswith(("Assign", "Placeholder", "Read", "Resource", "VarHandle")) for kind in stateful)


def _of_tensors(function: Any) -> Callable[..., Any]:
    """A ConcreteFunction as a function of its flat arguments."""
    return lambda *tensors: function._call_flat(list(tensors), function.captured_inputs)
