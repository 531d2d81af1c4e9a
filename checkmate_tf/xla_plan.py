"""Planning a step that XLA compiles: the peak is that of the compiled step, known without running it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from checkmate_tf.extraction import TrainingGraph
from checkmate_tf.graph import Graph
from checkmate_tf.plan import Options, Planned, ResidentBytes, make_plan
from checkmate_tf.profiling.device import default_device
from checkmate_tf.simulator import retain_all_schedule, simulate
from checkmate_tf.solvers import Solution
from checkmate_tf.xla_emission import emit_for_xla, tie_for
from checkmate_tf.xla_graph import xla_graph
from checkmate_tf.xla_memory import XlaMemory, compiled, materialized_ops, xla_memory


def make_xla_plan(
    training_graph: TrainingGraph,
    whole_step: Callable[[Any], Callable[..., Any]],
    specs: Sequence[tf.TensorSpec],
    options: Options,
    *,
    resident: ResidentBytes,
    free_bytes: Callable[[], int],
) -> Planned:
    """The cheapest schedule whose step, compiled by XLA, keeps within the budget.

    The stock step is compiled first: what it materializes makes the graph, whose values are scaled so that it
    predicts the stock step's peak. Then: plan, compile, read the peak of the buffer assignment, and plan for less
    where it is above the budget.

    Args:
        whole_step: from a function in the place of `training_graph.function` to the step to compile.
        specs: of the step's arguments.

    Raises InfeasibleBudgetError when no plan compiles within the budget, and BudgetError for a budget that cannot
    be read.
    """
    stock = compiled(whole_step(training_graph.function), specs)
    fused = xla_graph(training_graph, materialized_ops(stock))
    fused = replace(fused, graph=_calibrated(fused.graph, xla_memory(stock)))

    def peak_bytes(emitted: Any) -> int:
        return xla_memory(compiled(whole_step(emitted.function), specs)).peak_bytes

    def emissions(solution: Solution) -> list[Any]:
        assert solution.schedule is not None
        return [emit_for_xla(fused, solution.schedule, tie=tie_for(default_device()))]

    return make_plan(
        fused.graph,
        options,
        emissions=emissions,
        resident=resident,
        measure=peak_bytes,
        free_bytes=free_bytes,
        tolerance=0.0,
    )


def _calibrated(graph: Graph, memory: XlaMemory) -> Graph:
    """The graph with the compiled step's arguments and results resident, and values scaled to its temporary bytes."""
    held = simulate(graph, retain_all_schedule(graph)).peak_bytes - graph.resident_bytes
    scale = memory.temporary_bytes / held if held else 1.0
    return replace(
        graph,
        resident_bytes=memory.argument_bytes + memory.output_bytes,
        values=tuple(replace(value, size_bytes=int(value.size_bytes * scale)) for value in graph.values),
        nodes=tuple(replace(node, workspace_bytes=int(node.workspace_bytes * scale)) for node in graph.nodes),
    )
