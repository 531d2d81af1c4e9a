"""Shows progress bars of solving and of planning on standard error, if that is a terminal."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum

from tqdm import tqdm

from checkmate_tf.budget import format_bytes
from checkmate_tf.graph import Graph
from checkmate_tf.solvers import Update

_LAYOUT = "{desc} {n:.0f}/{total:.0f} s, {remaining} left{postfix}"
_REFRESH_S = 0.5


class Stage(StrEnum):
    """The stages of work on a training step, in the words of its progress bar."""

    TRACE = "tracing the step"
    COMPILE = "compiling it"
    MEASURE_STOCK = "measuring the stock step"
    TIME_NODES = "timing its nodes"
    FIND_LEAST = "finding the least memory"
    SOLVE = "solving"
    SOLVE_BY_OTHERS = "solving by others"
    MEASURE_REWRITTEN = "measuring the rewritten step"
    RUN_SCHEDULES = "running the schedules"


# The stages of planning, with a first guess of their seconds. The last two repeat if a step takes too much memory.
_STAGES_S = {
    Stage.TRACE: 3.0,
    Stage.MEASURE_STOCK: 3.0,
    Stage.TIME_NODES: 5.0,
    Stage.SOLVE: 5.0,
    Stage.MEASURE_REWRITTEN: 4.0,
}


class PlanningBar:
    """Shows the present stage of planning, the time used and expected, and the best plan so far."""

    def __init__(self, bar: tqdm, stages_s: Mapping[Stage, float]):
        self._bar = bar
        self._began_s = self._stage_began_s = time.perf_counter()
        self._stage: Stage | None = None
        self._subject = ""
        self._expected_s = dict(stages_s)

    def set_subject(self, what: str) -> None:
        """Sets the subject of planning, and the reason if the user did not request it."""
        self._subject = f" {what}"

    def begin_stage(self, stage: Stage, expected_s: float | None = None) -> None:
        """Begins one of the stages, which is expected to take `expected_s` if that is given."""
        now_s = time.perf_counter()
        if self._stage is not None:
            self._expected_s[self._stage] = now_s - self._stage_began_s
        if expected_s is not None:
            self._expected_s[stage] = expected_s
        self._stage, self._stage_began_s = stage, now_s
        self._bar.total = now_s - self._began_s + self._expected_s[stage] + self._sum_following_s()
        self._bar.set_description_str(f"planning{self._subject}: {stage}")

    def set_fraction(self, done: int, total: int) -> None:
        """Sets the completed fraction of the present stage, from which the remaining time follows."""
        now_s = time.perf_counter()
        left_s = (now_s - self._stage_began_s) * (total - done) / max(done, 1)
        self._bar.total = now_s - self._began_s + left_s + self._sum_following_s()

    def _sum_following_s(self) -> float:
        """Returns the expected time of the stages after this one, in seconds."""
        stages = list(self._expected_s)
        following = stages if self._stage is None else stages[stages.index(self._stage) + 1 :]
        return sum(self._expected_s[stage] for stage in following)

    def show_best(self, overhead: float, peak_bytes: int, budget_bytes: int) -> None:
        """Shows the best plan so far."""
        self._bar.set_postfix_str(
            f"best so far: {format_bytes(peak_bytes)} of {format_bytes(budget_bytes)}, {overhead:.1%} more time"
        )


@contextmanager
def show_planning(*, shown: bool, stages_s: Mapping[Stage, float] = _STAGES_S) -> Iterator[PlanningBar]:
    """Shows the progress of planning from the first moment. `stages_s` are in their order, each with a first guess."""
    disable = None if shown else True
    bar = tqdm(total=sum(stages_s.values()), bar_format=_LAYOUT, file=sys.stderr, disable=disable, leave=False)
    with bar, _tick_seconds(bar):
        yield PlanningBar(bar, stages_s)


@contextmanager
def show_solving(
    graph: Graph, *, name: str, time_limit_s: float, shown: bool = True
) -> Iterator[Callable[[Update], None]]:
    """Shows a solver's time, best schedule and bound. Yields a function for the argument `on_progress` of solve()."""
    disable = None if shown else True
    bar = tqdm(total=time_limit_s, desc=name, bar_format=_LAYOUT, file=sys.stderr, disable=disable, leave=False)
    with bar, _tick_seconds(bar):

        def show(update: Update) -> None:
            baseline = max(graph.baseline_cost, 1)
            bound = f"bound {update.cost_lower_bound / baseline - 1:.3%}"
            bar.set_postfix_str(bound if update.cost is None else f"overhead {update.cost / baseline - 1:.3%}, {bound}")

        yield show


@contextmanager
def _tick_seconds(bar: tqdm) -> Iterator[None]:
    """Moves a bar of seconds during the block, which may report nothing for long, up to its end, which may move."""
    if bar.disable:
        yield
        return
    ended = threading.Event()
    started_s = time.perf_counter()

    def tick() -> None:
        while not ended.wait(_REFRESH_S):
            bar.n = min(time.perf_counter() - started_s, float(bar.total or 0))
            bar.refresh()

    ticker = threading.Thread(target=tick, daemon=True)
    with suppress(RuntimeError):  # No more threads can be started.
        ticker.start()
    try:
        yield
    finally:
        ended.set()
        if ticker.is_alive():
            ticker.join()
