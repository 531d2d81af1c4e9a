"""Keeps the best recomputations of a search that does not anneal."""

from collections.abc import Iterable

import numpy as np

from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.stages import Event, rows_of, schedule_of_events


class KeptEvents:
    """A stand-in for `Annealer` without moves: the cheapest of the loaded sets that stay within the budget."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._events: np.ndarray | None = None
        self.best_cost: int | None = None

    def load(self, events: Iterable[Event]) -> None:
        rows = rows_of(sorted(set(events)))
        simulation = simulate(self._problem.graph, schedule_of_events(len(self._problem.graph.nodes), rows))
        if simulation.peak_bytes <= self._problem.budget_bytes:
            self.learn(rows, simulation.cost)

    def learn(self, events: np.ndarray | None, cost: int | None) -> None:
        if events is not None and cost is not None and (self.best_cost is None or cost < self.best_cost):
            self._events, self.best_cost = events, cost

    def cool(self, num_moves: int, *, gently: bool = False) -> Iterable[int]:
        """Makes no moves."""
        return ()

    def restart(self) -> None:
        """Does nothing, because there are no moves."""

    def best_events(self) -> np.ndarray | None:
        return self._events

    def best_schedule(self) -> Schedule | None:
        return None if self._events is None else schedule_of_events(len(self._problem.graph.nodes), self._events)
