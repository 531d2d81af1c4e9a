"""Describes a training step at every size: it is traced at a few, and modelled between and beyond them."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.graph.step import GraphStep
from checkmate_tf.executors.step import ResidentBytes
from checkmate_tf.executors.xla.step import XlaStep
from checkmate_tf.graph import Graph
from checkmate_tf.max_batch.graph_model import SizeModel, fit_size_model
from checkmate_tf.max_batch.sized_step import SizedStep
from checkmate_tf.measurement.step_run import ProcessRun
from checkmate_tf.patterns import Steering
from checkmate_tf.planning.attempt import arrange_solution
from checkmate_tf.planning.options import Options, Request
from checkmate_tf.profiling.costs import CostModel, MeasuredCosts, cost_training_graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import Solution
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.tracing.origins import find_origins

# Before the first run, the allocator is expected to add this share of the bytes beside the resident ones.
MARGIN = 0.02
# A graph is first traced at these sizes, which are small, but large enough that broadcasting is not special.
_FIRST_SIZE = {"batch": 8, "height": 64, "width": 64, "image": 64, "length": 64}


@dataclass(frozen=True, eq=False)
class ModelledStep:
    """A step whose graph is known at every size: traced at a few, and modelled between and beyond them.

    Args:
        reference: the trace that defines the nodes and values of every size.
        stock_size: the predicted largest size that fits without rematerialization; None if none does.
        compiled: the step of the size of `reference`, if XLA compiles it; otherwise None.
        graphs: the graphs requested so far, by size.
    """

    step: SizedStep
    reference: TrainingGraph
    sizes: SizeModel
    stock_size: int | None
    compiled: XlaStep | None
    graphs: dict[int, Graph] = field(default_factory=dict)

    @staticmethod
    def of(step: SizedStep, sizes: range, budget_bytes: int, request: Request) -> "ModelledStep":
        """Models a step from graphs near the largest size that fits without rematerialization."""
        degree = 1 if step.axis == "batch" else 2
        first = _round_to_multiple(_FIRST_SIZE[step.axis], sizes.step)
        _, rough = _fit_model(step, [first * factor for factor in range(1, degree + 3)], degree, None)
        largest = _find_stock_size(lambda size: _expect(rough.evaluate(size)), sizes, budget_bytes) or 0
        largest = max(largest, first, (degree + 2) * sizes.step)
        taken = {_round_to_multiple(largest * part / (degree + 2), sizes.step) for part in range(1, degree + 3)}
        is_compiled = bool(step.model.jit_compile)
        costs = request.options.choose_costs(compiled=is_compiled, progress=request.progress)
        if is_compiled and isinstance(costs, MeasuredCosts):
            costs = costs.make_roofline(compiled=True)
        reference, modelled = _fit_model(step, sorted(taken), degree, costs)
        compiled = _compile_stock(step, max(taken), reference) if is_compiled else None
        known = ModelledStep(step, reference, modelled, None, compiled)
        return replace(known, stock_size=_find_stock_size(known.expect_stock, sizes, budget_bytes))

    def find_graph(self, size: int) -> Graph:
        """Returns the graph of a size, by the model."""
        if size not in self.graphs:
            traced = replace(self.reference, graph=self.sizes.evaluate(size))
            self.graphs[size] = traced.graph if self.compiled is None else _resize(self, traced, size).graph
        return self.graphs[size]

    def steer(self, options: Options) -> tuple[Steering, ...]:
        """Returns the nodes that patterns constrain, at any size. Raises PatternError if a pattern matches none."""
        if self.compiled is not None:
            return options.steer(self.compiled.graph, self.compiled.origins)
        return options.steer(self.reference.graph, find_origins(self.reference))

    def expect_stock(self, size: int) -> int:
        """Returns the expected peak bytes of the stock step of a size."""
        if self.compiled is None:
            return _expect(self.find_graph(size))
        return _resize(self, replace(self.reference, graph=self.sizes.evaluate(size)), size).stock_peak_bytes

    def trace(self, size: int) -> TrainingGraph:
        """Traces the step of a size, and replaces its graph by the modelled one."""
        return replace(self.step.trace(size, self.reference), graph=self.sizes.evaluate(size))

    def arrange(self, graph: Graph, solution: Solution) -> Solution:
        """Returns a solution of the graph of a size in the form that the executor runs."""
        if self.compiled is not None:
            xla_graph = replace(self.compiled.xla_graph, graph=graph)
            return arrange_solution(replace(self.compiled, xla_graph=xla_graph), solution)
        traced = replace(self.reference, graph=graph)
        step = GraphStep(traced, ResidentBytes(), arguments=None, stock=EmittedFunction(traced.function))
        return arrange_solution(step, solution)

    def make_step(self, size: int) -> GraphStep | XlaStep:
        """Returns the step of a size for planning. Its memory is known, and it is not measured here."""
        traced = self.trace(size)
        if self.compiled is not None:
            return _resize(self, traced, size)
        resident = self.step.count_resident_bytes(size, traced)
        return GraphStep(traced, resident, arguments=None, stock=EmittedFunction(traced.function))

    def run(self, size: int, schedule: Schedule, *, timeout_s: float) -> ProcessRun:
        """Runs the step of a size, with a schedule, in a process of its own; under XLA, compiles it instead."""
        if self.compiled is None:
            return self.step.run(size, self.trace(size), schedule, timeout_s=timeout_s)
        step = _resize(self, self.trace(size), size)
        return ProcessRun(step.measure(step.emit(step.arrange(schedule), "chain"), 0).peak_bytes)


def _fit_model(
    step: SizedStep, taken: list[int], degree: int, costs: CostModel | None
) -> tuple[TrainingGraph, SizeModel]:
    """Fits a model to traces, and returns the largest trace, too. Without `costs`, the costs of the traces are kept."""
    reference = step.trace(taken[-1])
    traced = {size: step.trace(size, reference) for size in taken[:-1]} | {taken[-1]: reference}
    if costs is not None:
        traced = {size: cost_training_graph(graph, costs) for size, graph in traced.items()}
    return reference, fit_size_model({size: graph.graph for size, graph in traced.items()}, degree=degree)


def _compile_stock(step: SizedStep, size: int, traced: TrainingGraph) -> XlaStep:
    resident = step.count_resident_bytes(size, traced)
    return XlaStep.of(traced, step.complete(size), step.make_spec(size).flat, resident=resident)


def _resize(modelled: ModelledStep, traced: TrainingGraph, size: int) -> XlaStep:
    """Returns the compiled step as one of the size."""
    assert modelled.compiled is not None
    step = modelled.step
    resident = step.count_resident_bytes(size, modelled.reference)
    return modelled.compiled.resize(traced, step.complete(size), step.make_spec(size).flat, resident=resident)


def _find_stock_size(peak_at: Callable[[int], int], sizes: range, budget_bytes: int) -> int | None:
    """Returns the largest size whose peak is within the budget without rematerialization."""
    fitting = bisect_right(sizes, budget_bytes, key=peak_at)
    return sizes[fitting - 1] if fitting else None


def _expect(graph: Graph) -> int:
    """Returns the expected peak bytes of a stock step, including the bytes that the allocator adds."""
    return graph.resident_bytes + int((simulate_stock(graph).peak_bytes - graph.resident_bytes) * (1 + MARGIN))


def _round_to_multiple(size: float, unit: int) -> int:
    return max(round(size / unit), 1) * unit
