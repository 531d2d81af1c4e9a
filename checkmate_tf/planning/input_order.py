"""Lets a solver take the nodes of a graph in another order than that of the trace.

In fixed order, a schedule computes nodes for the first time in the order of the graph. The trace of a step with several
branches alternates between their gradients. A schedule in this order computes values too early, frees them unread, and
computes them again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule


@dataclass(frozen=True)
class InputOrder:
    """A topological order of a graph's nodes, which a solver has to keep; `nodes`, [num_nodes]."""

    nodes: tuple[int, ...]

    @staticmethod
    def of(schedule: Schedule) -> "InputOrder":
        """Returns the order in which a schedule first computes nodes."""
        return InputOrder(tuple(dict.fromkeys(schedule.order)))

    @cached_property
    def positions(self) -> dict[int, int]:
        """Maps each node to its place in the order."""
        return {node: position for position, node in enumerate(self.nodes)}

    def arrange(self, graph: Graph) -> Graph:
        """Returns the graph with its nodes in this order."""
        return replace(graph, nodes=tuple(graph.nodes[node] for node in self.nodes))

    def hand_over(self, schedule: Schedule) -> Schedule:
        """Returns a schedule of the graph as one of the graph in this order."""
        return _rename(schedule, self.positions)

    def take_back(self, schedule: Schedule) -> Schedule:
        """Returns a schedule of the graph in this order as one of the graph."""
        return _rename(schedule, self.nodes)


def _rename(schedule: Schedule, names: Mapping[int, int] | Sequence[int]) -> Schedule:
    return replace(schedule, order=tuple(names[node] for node in schedule.order))
