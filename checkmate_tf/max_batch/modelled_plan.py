"""A training step whose graph is known at every size, and the plan for one of them."""

from dataclasses import dataclass, replace
from functools import lru_cache

from checkmate_tf.emission.writer import emit
from checkmate_tf.graph import Graph
from checkmate_tf.max_batch.graph_model import SizeModel, fit_size_model
from checkmate_tf.max_batch.search import Largest
from checkmate_tf.max_batch.sized_step import SizedStep
from checkmate_tf.planning.plan import Options, Plan, Planned
from checkmate_tf.planning.search import solution_of
from checkmate_tf.profiling.costs import CostModel, cost_training_graph
from checkmate_tf.simulator import retain_all_schedule, simulate
from checkmate_tf.solvers.registry import solver_name
from checkmate_tf.tracing.extraction import TrainingGraph

# Of the bytes beside the resident ones, for what the allocator adds, until a run tells.
MARGIN = 0.02
# The sizes that a graph is first taken at: small, but large enough that broadcasting treats them as any other.
_FIRST_SIZE = {"batch": 8, "height": 64, "width": 64, "image": 64, "length": 64}


@dataclass(frozen=True, eq=False)
class ModelledStep:
    """A step whose graph is known at every size: traced at a few, modelled between and beyond.

    Args:
        reference: the trace that says, for every size, what the nodes and values are.
        stock_size: the largest that fits without rematerialization, as predicted; None where none does.
    """

    step: SizedStep
    reference: TrainingGraph
    sizes: SizeModel
    stock_size: int | None

    @staticmethod
    def of(step: SizedStep, sizes: range, budget_bytes: int, costs: str | CostModel) -> "ModelledStep":
        """From graphs near the largest size that fits without rematerialization."""
        degree = 1 if step.axis == "batch" else 2
        first = _multiple(_FIRST_SIZE[step.axis], sizes.step)
        _, rough = _modelled(step, [first * factor for factor in range(1, degree + 3)], degree, None)
        largest = max(_stock_size(rough, sizes, budget_bytes) or 0, first, (degree + 2) * sizes.step)
        taken = {_multiple(largest * part / (degree + 2), sizes.step) for part in range(1, degree + 3)}
        reference, modelled = _modelled(step, sorted(taken), degree, costs)
        return ModelledStep(step, reference, modelled, _stock_size(modelled, sizes, budget_bytes))

    def graph_at(self, size: int) -> Graph:
        return _graph_at(self.sizes, size)

    def traced(self, size: int) -> TrainingGraph:
        """The step of a size, traced, with the graph that is modelled."""
        return replace(self.step.trace(size, self.reference), graph=self.graph_at(size))

    def planned(self, best: Largest, options: Options, budget_bytes: int) -> tuple[Planned, TrainingGraph]:
        """The plan for a size, and the step that it is for."""
        traced = self.traced(best.size)
        graph = traced.graph
        name = options.solver if isinstance(options.solver, str) else solver_name(options.solver)
        solution = solution_of(graph, best.schedule, name)
        stock_bytes = simulate(graph, retain_all_schedule(graph)).peak_bytes
        assert solution.simulation is not None
        plan = Plan(
            name=self.step.model.name,
            budget_bytes=budget_bytes,
            stock_peak_bytes=stock_bytes,
            predicted_stock_peak_bytes=stock_bytes,
            predicted_peak_bytes=solution.simulation.peak_bytes,
            measured_peak_bytes=None if best.run is None else best.run.measured_peak_bytes,
            resident=self.step.resident(best.size, traced),
            graph=graph,
            solution=solution,
        )
        return Planned(plan, emit(traced, best.schedule), "chain"), traced


def _modelled(
    step: SizedStep, taken: list[int], degree: int, costs: str | CostModel | None
) -> tuple[TrainingGraph, SizeModel]:
    """The largest trace and the model from all; without `costs` those of the trace are kept."""
    reference = step.trace(taken[-1])
    traced = {size: step.trace(size, reference) for size in taken[:-1]} | {taken[-1]: reference}
    if costs is not None:
        traced = {size: cost_training_graph(graph, costs) for size, graph in traced.items()}
    return reference, fit_size_model({size: graph.graph for size, graph in traced.items()}, degree=degree)


@lru_cache(maxsize=64)
def _graph_at(sizes: SizeModel, size: int) -> Graph:
    return sizes.at(size)


def _stock_size(model: SizeModel, sizes: range, budget_bytes: int) -> int | None:
    """The largest size that fits without rematerialization, by the model."""
    low, high = 0, len(sizes)
    while low < high:
        middle = (low + high) // 2
        graph = model.at(sizes[middle])
        beside_bytes = simulate(graph, retain_all_schedule(graph)).peak_bytes - graph.resident_bytes
        fits = graph.resident_bytes + beside_bytes * (1 + MARGIN) <= budget_bytes
        low, high = (middle + 1, high) if fits else (low, middle)
    return sizes[low - 1] if low else None


def _multiple(size: float, unit: int) -> int:
    return max(round(size / unit), 1) * unit
