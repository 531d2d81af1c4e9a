"""Makes the graph that a solver solves: constrained by the user's patterns, with its nodes in some input order."""

from dataclasses import dataclass, replace
from functools import cached_property

from checkmate_tf.constraints import ConstrainedGraph, Constraints, constrain
from checkmate_tf.graph import Graph
from checkmate_tf.planning.input_order import InputOrder
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate
from checkmate_tf.solvers import Scheduled, Solution


def make_least_schedule(graph: Graph, constraints: Constraints) -> Schedule:
    """Returns the schedule that recomputes only what constraints require; the stock schedule without constraints."""
    constrained = constrain(graph, constraints)
    return constrained.take_back(make_retain_all_schedule(constrained.graph))


@dataclass(frozen=True)
class AskedGraph:
    """The graph that a solver solves instead of another one, the original.

    Args:
        input_order: order of the nodes of the constrained graph.
    """

    constrained: ConstrainedGraph
    input_order: InputOrder

    @staticmethod
    def of(graph: Graph, constraints: Constraints, first: Schedule | None = None) -> "AskedGraph":
        """Constrains a graph, and orders its nodes as a schedule first computes them; in its own order without one."""
        constrained = constrain(graph, constraints)
        handed = None if first is None else constrained.hand_over(first)
        nodes = tuple(range(len(constrained.graph.nodes)))
        return AskedGraph(constrained, InputOrder(nodes) if handed is None else InputOrder.of(handed))

    @cached_property
    def graph(self) -> Graph:
        """Returns the graph for the solver."""
        return self.input_order.arrange(self.constrained.graph)

    def allows(self, schedule: Schedule) -> bool:
        """Returns whether a schedule of the original graph satisfies the constraints."""
        return self.constrained.hand_over(schedule) is not None

    def hand_over(self, solution: Solution | None) -> Solution | None:
        """Returns a solution of the original graph as one of the asked graph; None where it breaks the constraints."""
        handed = None
        if solution is not None and solution.schedule is not None:
            handed = self.constrained.hand_over(solution.schedule)
        if solution is None or handed is None:
            return None
        schedule = self.input_order.hand_over(handed)
        return replace(solution, best=Scheduled(schedule, simulate(self.graph, schedule)))

    def take_back(self, solution: Solution) -> Solution:
        """Returns a solution of the asked graph as one of the original graph."""
        if solution.schedule is None:
            return solution
        schedule = self.constrained.take_back(self.input_order.take_back(solution.schedule))
        return replace(solution, best=Scheduled(schedule, simulate(self.constrained.original, schedule)))
