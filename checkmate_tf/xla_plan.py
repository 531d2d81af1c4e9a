"""Planning a step that XLA compiles: the peak is that of the compiled step, known without running it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from checkmate_tf.budget import parse_budget
from checkmate_tf.emission import EmittedFunction, Ordering
from checkmate_tf.extraction import TrainingGraph
from checkmate_tf.plan import Options, Planned, ResidentBytes, make_plan
from checkmate_tf.profiling.costs import CostModel
from checkmate_tf.profiling.device import default_device
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import retain_all_schedule
from checkmate_tf.xla_emission import emit_for_xla
from checkmate_tf.xla_graph import xla_graph
from checkmate_tf.xla_memory import compiled, kernels, xla_memory
from checkmate_tf.xla_ties import Tie, tie_for


def make_xla_plan(
    training_graph: TrainingGraph,
    whole_step: Callable[[Any], Callable[..., Any]],
    specs: Sequence[tf.TensorSpec],
    options: Options,
    *,
    resident: ResidentBytes,
    free_bytes: Callable[[], int],
    tie: Tie | None = None,
) -> Planned:
    """The cheapest schedule whose step, compiled by XLA, keeps within the budget.

    The stock step is compiled first: its kernels make the graph, its arguments and results are what is resident,
    and its peak is what a budget in percent is of. Then `make_plan`'s rounds, the peak of each read from the buffer
    assignment.

    Args:
        whole_step: from a function in the place of `training_graph.function` to the step to compile.
        specs: of the step's arguments.
        tie: how copies wait; by default what the device keeps.

    Raises InfeasibleBudgetError when no plan compiles within the budget, and BudgetError for a budget that cannot
    be read.
    """
    stock = compiled(whole_step(training_graph.function), specs)
    memory = xla_memory(stock)
    graph = xla_graph(training_graph, kernels(stock))
    graph = replace(graph, graph=replace(graph.graph, resident_bytes=memory.argument_bytes + memory.output_bytes))
    if options.budget != "auto":
        options = replace(options, budget=parse_budget(options.budget, peak_bytes=memory.peak_bytes))

    def peak_bytes(emitted: EmittedFunction) -> int:
        return xla_memory(compiled(whole_step(emitted.function), specs)).peak_bytes

    def emit(schedule: Schedule, _: Ordering) -> EmittedFunction:
        if schedule == retain_all_schedule(graph.graph):
            function = training_graph.function
            return EmittedFunction(function, function.graph.as_graph_def(), 0, {}, 0)
        return emit_for_xla(graph, schedule, tie=tie or tie_for(default_device()))

    planned = make_plan(
        graph.graph,
        options,
        emit=emit,
        resident=resident,
        measure=peak_bytes,
        free_bytes=free_bytes,
    )
    return replace(planned, plan=replace(planned.plan, stock_peak_bytes=memory.peak_bytes))


def xla_costs(costs: str | CostModel) -> str | CostModel:
    """What to cost nodes by: times measured op by op, by TensorFlow's kernels, say nothing of XLA's fusions."""
    return "roofline" if costs == "measured" else costs
