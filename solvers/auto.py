"""The default solver."""

from collections.abc import Callable
from dataclasses import dataclass

from checkmate_tf.solvers.base import Found, Problem, Progress, Solver
from checkmate_tf.solvers.stage_annealing import StageAnnealing


@dataclass(frozen=True)
class Auto(Solver):
    """Stage-space annealing; a fixed-order schedule is one of free order too."""

    def search(
        self,
        problem: Problem,
        *,
        time_limit_s: float,
        seed: int,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Found:
        return StageAnnealing().search(problem, time_limit_s=time_limit_s, seed=seed, on_progress=on_progress)
