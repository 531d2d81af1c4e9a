"""Describes a schedule that was emitted and, if steps are measured, its measurement."""

from dataclasses import dataclass, replace

from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.emission.ordering import Ordering
from checkmate_tf.executors.step import Step
from checkmate_tf.graph import Graph
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers import Scheduled, Solution, Status


@dataclass(frozen=True)
class Attempt:
    """A schedule that was emitted and, if steps are measured, its measurement."""

    solution: Solution
    function: EmittedFunction
    ordering: Ordering
    run: StepRun | None

    @property
    def predicted_bytes(self) -> int:
        """Returns the peak that the simulator predicts."""
        return self.solution.scheduled.simulation.peak_bytes

    @property
    def cost(self) -> int:
        """Returns the cost that the simulator predicts."""
        return self.solution.scheduled.simulation.cost

    @property
    def peak_bytes(self) -> int:
        """Returns the compiled peak; without one, the predicted peak, or the measured one if it is larger."""
        if self.run is None:
            return self.predicted_bytes
        return self.run.peak_bytes if self.run.is_compiled else max(self.run.peak_bytes, self.predicted_bytes)

    @property
    def held_bytes(self) -> int:
        """Returns the bytes that the step still holds after its end, beyond resident bytes."""
        return 0 if self.run is None else self.run.held_bytes


def make_solution(graph: Graph, schedule: Schedule, solver: str) -> Solution:
    """Returns a schedule as the solution of a solver that proves nothing."""
    simulation = simulate(graph, schedule)
    status = Status.OPTIMAL if simulation.cost == graph.baseline_cost else Status.FEASIBLE
    return Solution(status, Scheduled(schedule, simulation), graph.baseline_cost, "free", solver, 0.0, {})


def arrange_solution(step: Step, solution: Solution) -> Solution:
    """Returns a solution whose schedule is in the form that the step's executor runs.

    A bound for fixed order is dropped if it does not hold for that schedule, which may be in another order.
    """
    if solution.schedule is None:
        return solution
    schedule = step.arrange(solution.schedule)
    if schedule == solution.schedule:
        return solution
    simulation = simulate(step.graph, schedule)
    status = solution.status if simulation.cost == solution.scheduled.simulation.cost else Status.FEASIBLE
    arranged = replace(solution, status=status, best=Scheduled(schedule, simulation))
    if solution.bound_order == "free" or solution.cost_lower_bound <= simulation.cost:
        return arranged
    return replace(arranged, cost_lower_bound=step.graph.baseline_cost, bound_order="free")
