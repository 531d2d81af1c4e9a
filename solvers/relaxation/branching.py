"""Branch and cut for the mixed-integer program of a block relaxation.

The program has tens of thousands of rows, of which a linear solution needs a few thousand (`lazy_program.py`). Path
cuts (`cuts.py`) are added at every node of the tree. The search branches on single variables, and on how often a node
is recomputed in all blocks together. Threads take nodes from one queue, each with a linear program of its own.
"""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from scipy import sparse

from checkmate_tf.graph import Graph
from checkmate_tf.solvers.mip.lazy_program import LazyProgram, LazySolution
from checkmate_tf.solvers.mip.program import MixedIntegerProgram
from checkmate_tf.solvers.relaxation.cuts import find_violated_cuts
from checkmate_tf.solvers.relaxation.model import BlockModel, path_cut_row
from checkmate_tf.solvers.relaxation.programs import LinearOptimum, Relaxed, cost_scale, rows_of_terms
from checkmate_tf.solvers.relaxation.settings import SETTINGS

# Tolerances of HiGHS's floating point.
_WHOLE = 1e-5  # a value this close to a whole number counts as whole
_LEAST_WORTH = 1e-9  # a row with a smaller dual value does not matter for the bound
_ROUNDING = 1e-6  # error of a bound or of a quotient of two


def bound_by_branching(
    model: BlockModel,
    graph: Graph,
    linear: LinearOptimum,
    *,
    at_most: Callable[[], float],
    time_limit_s: float,
    on_bound: Callable[[float], bool],
    num_threads: int = 1,
) -> Relaxed:
    """Finds the cheapest point of a model by branch and cut, or a lower bound.

    Args:
        linear: the model's linear relaxation.
        at_most: the search is limited to points that cost no more.
        on_bound: called with each lower bound as it is proved; returns whether to continue.
        num_threads: with more than one, the result depends on chance.
    """
    return _Tree(model, graph, linear, at_most, time.perf_counter() + time_limit_s).search(on_bound, num_threads)


@dataclass
class _Bounds:
    """The bounds of every column."""

    lower: np.ndarray
    upper: np.ndarray

    def split(self, column: int, value: float) -> "tuple[_Bounds, _Bounds]":
        """Splits the bounds in two: the column is at most its value rounded down, or at least its value rounded up."""
        lower, upper = self.lower.copy(), self.upper.copy()
        upper[column], lower[column] = math.floor(value), math.floor(value) + 1
        return _Bounds(self.lower, upper), _Bounds(lower, self.upper)

    def tighten(self, solution: LazySolution, at_most: float) -> "_Bounds":
        """Excludes values that would cost more than `at_most`, by the columns' reduced costs."""
        assert solution.reduced is not None
        room = max(at_most - solution.bound, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.floor(room / np.abs(solution.reduced) + _ROUNDING)
        lower = np.where(solution.reduced < 0, np.maximum(self.lower, self.upper - steps), self.lower)
        upper = np.where(solution.reduced > 0, np.minimum(self.upper, self.lower + steps), self.upper)
        return _Bounds(lower, upper)


@dataclass(frozen=True, order=True)
class _Node:
    """A node of the tree in little memory: the bounds that differ from the root's, and the values other than 0."""

    bound: float
    number: int
    changed: tuple[np.ndarray, np.ndarray, np.ndarray]
    positive: tuple[np.ndarray, np.ndarray] | None

    @staticmethod
    def of(bound: float, number: int, bounds: _Bounds, root: _Bounds, point: np.ndarray | None) -> "_Node":
        changed = np.flatnonzero((bounds.lower != root.lower) | (bounds.upper != root.upper))
        positive = None
        if point is not None:
            columns = np.flatnonzero(point > _WHOLE)
            positive = columns, point[columns]
        return _Node(bound, number, (changed, bounds.lower[changed], bounds.upper[changed]), positive)

    def expand(self, root: _Bounds) -> tuple[_Bounds, np.ndarray | None]:
        bounds = _Bounds(root.lower.copy(), root.upper.copy())
        columns, bounds.lower[columns], bounds.upper[columns] = self.changed
        if self.positive is None:
            return bounds, None
        point = np.zeros(len(root.lower))
        point[self.positive[0]] = self.positive[1]
        return bounds, point

    def is_whole(self, whole: np.ndarray) -> bool:
        columns, values = self.positive or (np.zeros(0, dtype=np.int64), np.zeros(0))
        return not _is_fractional(values, whole[columns]).any()


class _Tree:
    """The open nodes, and the facts that all threads share."""

    def __init__(
        self, model: BlockModel, graph: Graph, linear: LinearOptimum, at_most: Callable[[], float], until_s: float
    ) -> None:
        self.model, self.graph, self.until_s = model, graph, until_s
        self.unit = cost_scale(model) * model.cost_unit
        self._at_most = at_most
        totals = _repeated_columns(model)
        self.num_columns = model.num_columns + len(totals)
        self.whole = np.zeros(self.num_columns, dtype=bool)
        self.whole[model.integers] = True
        self.whole[model.num_columns :] = True
        self.costs = np.zeros(self.num_columns)
        self.costs[: model.num_columns] = model.costs * (model.cost_unit / self.unit)
        self.root = _Bounds(np.zeros(self.num_columns), np.ones(self.num_columns))
        self.root.upper[model.num_columns :] = [len(columns) for columns in totals]
        for column, value in model.fixed.items():
            self.root.lower[column] = self.root.upper[column] = value
        self.gains = np.zeros((2, self.num_columns))
        self.trials = np.zeros((2, self.num_columns))
        self.weights = self.costs.copy()
        self.weights[model.num_columns :] = [self.costs[columns].mean() for columns in totals]
        rows = model.rows
        scale = np.repeat(rows.scale, np.diff(rows.start))
        matrix = sparse.csr_matrix(
            (rows.coefficient / scale, rows.column, rows.start), (len(rows.lower), self.num_columns)
        )
        counted = _counting_rows(totals, model.num_columns, self.num_columns)
        num_base = len(rows.lower) - len(model.blocks.cuts)
        needed = np.ones(len(rows.lower) + len(totals), dtype=bool)
        needed[:num_base] = linear.worth[:num_base] > _LEAST_WORTH
        self.program = MixedIntegerProgram(
            self.costs, self.root.lower, self.root.upper, self.whole,
            sparse.vstack([matrix, counted], format="csr"),
            np.concatenate([rows.lower / rows.scale, np.zeros(len(totals))]),
            np.concatenate([rows.upper / rows.scale, np.zeros(len(totals))]),
        )  # fmt: skip
        self.needed_rows = np.flatnonzero(needed)
        self.open: list[_Node] = []
        self.num_nodes = 0
        self.busy: list[float] = []  # the bounds of the nodes on which threads work
        self.changed = threading.Condition()
        self.result: Relaxed | None = None

    def search(self, on_bound: Callable[[float], bool], num_threads: int) -> Relaxed:
        first = _Brancher(self, on_bound)
        first.push(self.root, 0.0)
        with ThreadPoolExecutor(num_threads - 1) if num_threads > 1 else nullcontext() as pool:
            others: list[Future[None]] = []
            with suppress(RuntimeError):  # No more threads can be started.
                while pool and len(others) < num_threads - 1:
                    others.append(pool.submit(_Brancher(self, on_bound).work))
            first.work()
            for other in others:
                other.result()
        assert self.result is not None
        return self.result

    @property
    def at_most(self) -> float:
        return self._at_most() / self.unit + _ROUNDING

    def push(self, bound: float, bounds: _Bounds, point: np.ndarray | None) -> None:
        with self.changed:
            self.num_nodes += 1
            heappush(self.open, _Node.of(bound, self.num_nodes, bounds, self.root, point))

    def take(self, on_bound: Callable[[float], bool]) -> _Node | None:
        """Takes the next node to branch on, which is busy from then on. Returns None once there is a result."""
        with self.changed:
            while self.result is None:
                if self.open and self.open[0].bound <= self.at_most:
                    node = self.open[0]
                    proved = min([node.bound, *self.busy])
                    is_whole = node.is_whole(self.whole)
                    if not on_bound(proved * self.unit) or node.positive is None or time.perf_counter() > self.until_s:
                        self.result = Relaxed(proved * self.unit, None, optimal=False)
                    elif not is_whole:
                        self.busy.append(node.bound)
                        return heappop(self.open)
                    elif proved == node.bound:
                        point = node.expand(self.root)[1]
                        assert point is not None
                        self.result = Relaxed(proved * self.unit, point[: self.model.num_columns], optimal=True)
                elif not self.busy:
                    self.result = Relaxed(math.inf, None, optimal=False)
                if self.result is None:
                    self.changed.wait()
            self.changed.notify_all()
            return None

    def release(self, node: _Node) -> None:
        with self.changed:
            self.busy.remove(node.bound)
            self.changed.notify_all()


class _Brancher:
    """Solves nodes of a tree, with a linear program of its own."""

    def __init__(self, tree: _Tree, on_bound: Callable[[float], bool]) -> None:
        self.tree, self.on_bound = tree, on_bound
        self.program = LazyProgram(tree.program, tree.needed_rows)

    def work(self) -> None:
        while (node := self.tree.take(self.on_bound)) is not None:
            try:
                bounds, point = node.expand(self.tree.root)
                assert point is not None
                for child in self.children(bounds, point, node.bound):
                    self.push(child, node.bound)
            finally:
                self.tree.release(node)

    def push(self, bounds: _Bounds, least: float) -> None:
        """Solves a node of the tree, and opens it unless it costs too much."""
        solution = self.solve(bounds, least)
        bound, at_most = max(solution.bound, least), self.tree.at_most
        if math.isinf(bound) or bound > at_most:
            return
        if solution.point is not None:
            bounds = bounds.tighten(solution, at_most)
        self.tree.push(bound, bounds, solution.point)

    def solve(self, bounds: _Bounds, least: float) -> LazySolution:
        tree = self.tree
        solution = self.program.solve(bounds.lower, bounds.upper)
        for _ in range(SETTINGS.node_cut_rounds):
            if solution.point is None or solution.bound > tree.at_most or time.perf_counter() > tree.until_s:
                break
            if not self.add_cuts(solution.point):
                break
            before = max(solution.bound, least)
            solution = self.program.solve(bounds.lower, bounds.upper)
            if solution.bound - before < SETTINGS.node_rise_share * (tree.at_most - before):
                break
        if (
            solution.point is not None
            and not solution.complete
            and not _is_fractional(solution.point, tree.whole).any()
        ):
            solution = self.program.solve(bounds.lower, bounds.upper, until_complete=True)
        return solution

    def add_cuts(self, point: np.ndarray) -> bool:
        """Adds the path cuts that a point violates most, and returns whether there are any."""
        model = self.tree.model
        found = find_violated_cuts(model, self.tree.graph, point[: model.num_columns])[: SETTINGS.max_node_cuts]
        rows = (path_cut_row(model.blocks, model.recompute, model.retain, self.tree.graph, cut) for _, cut in found)
        if found:
            self.program.add_rows(*rows_of_terms(rows, self.tree.num_columns))
        return bool(found)

    def children(self, bounds: _Bounds, point: np.ndarray, bound: float) -> list[_Bounds]:
        """Returns the parts to examine next, without those that a trial closes."""
        tree = self.tree
        fractional = np.flatnonzero(_is_fractional(point, tree.whole))
        priced = fractional[tree.weights[fractional] > 0]
        candidates = priced if len(priced) else fractional
        part = point[candidates] - np.floor(point[candidates])
        score = self.expected_gain(0, candidates) * part * self.expected_gain(1, candidates) * (1 - part)
        best, best_score, num_trials = int(candidates[score.argmax()]), -1.0, 0
        max_trials = SETTINGS.max_trials if tree.trials.any() else SETTINGS.max_first_trials
        for index in np.argsort(-score, kind="stable")[: SETTINGS.candidates_per_trial * max_trials].tolist():
            column = int(candidates[index])
            if tree.trials[:, column].min() >= SETTINGS.reliable_trials:
                if score[index] > best_score:
                    best, best_score = column, score[index]
                continue
            if num_trials == max_trials or time.perf_counter() > tree.until_s:
                continue
            num_trials += 1
            parts = bounds.split(column, point[column])
            ends = [
                max(self.program.bound_within(SETTINGS.trial_iterations, each.lower, each.upper), bound)
                for each in parts
            ]
            at_most = tree.at_most
            for side in (0, 1):
                distance = (part[index], 1 - part[index])[side]
                tree.gains[side, column] += (min(ends[side], at_most) - bound) / distance
                tree.trials[side, column] += 1
            open_parts = [each for each, end in zip(parts, ends, strict=True) if end <= at_most]
            if len(open_parts) < 2:
                return open_parts
            gain = max(ends[0] - bound, _ROUNDING) * max(ends[1] - bound, _ROUNDING)
            if gain > best_score:
                best, best_score = column, gain
        return list(bounds.split(best, point[best]))

    def expected_gain(self, side: int, columns: np.ndarray) -> np.ndarray:
        """Returns the expected rise of the bound for a unit of change, from trials or, before any trial, from costs."""
        trials = self.tree.trials[side, columns]
        guess = self.tree.weights[columns] * (SETTINGS.down_gain_share, 1.0)[side]
        tried = self.tree.gains[side, columns] / np.maximum(trials, 1)
        return np.maximum(np.where(trials > 0, tried, guess), _ROUNDING)


def _is_fractional(point: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Returns the columns that have to be whole and are not."""
    return whole & (np.abs(point - np.round(point)) > _WHOLE)


def _repeated_columns(model: BlockModel) -> list[list[int]]:
    """Lists, for each node that several columns recompute, those columns."""
    of_node: dict[int, list[int]] = {}
    for (_, node), column in model.recompute.items():
        of_node.setdefault(node, []).append(column)
    return [columns for columns in of_node.values() if len(columns) > 1]


def _counting_rows(totals: list[list[int]], first: int, num_columns: int) -> sparse.csr_matrix:
    """Returns a row for each set of columns: their sum, less the column, from `first` on, that counts them."""
    starts = np.cumsum([0, *(len(columns) + 1 for columns in totals)])
    columns = [column for number, members in enumerate(totals) for column in (*members, first + number)]
    data = [value for members in totals for value in (*[1.0] * len(members), -1.0)]
    return sparse.csr_matrix((data, columns, starts), (len(totals), num_columns))
