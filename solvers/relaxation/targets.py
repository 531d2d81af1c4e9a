"""Proves lower bounds of a block relaxation, one target after the other.

HiGHS searches for points that cost at most a target between the linear bound and the known schedule. If there are none,
the target is a lower bound. Reduced costs fix most columns of such a program, so it takes a fraction of the time that a
search for anything better than the known schedule needs to reach the same bound.
"""

import math
import time
from collections.abc import Callable

from checkmate_tf.solvers.relaxation.programs import Relaxed
from checkmate_tf.solvers.relaxation.settings import SETTINGS


def bound_by_targets(
    solve: Callable[[float, float], Relaxed],
    linear_bound: float,
    *,
    at_most: Callable[[], float],
    time_limit_s: float,
    on_bound: Callable[[float], bool],
) -> Relaxed:
    """Finds the cheapest point that costs at most `at_most`, or a lower bound, target by target.

    Args:
        solve: searches for points that cost at most a target, for so many seconds.
        linear_bound: linear bound of the program, in units of cost.
        at_most: returns the limit of the cost. It is called before each target.
        on_bound: called with each target that is proved to be a lower bound; returns whether to continue.
    """
    until_s = time.perf_counter() + time_limit_s
    lacking = at_most() - linear_bound
    target = linear_bound + SETTINGS.first_target_share * lacking
    while True:
        most = at_most()
        relaxed = solve(min(target, most), until_s - time.perf_counter())
        if target >= most or math.isfinite(relaxed.lower_bound):
            return relaxed
        if not on_bound(target) or time.perf_counter() >= until_s:
            return Relaxed(target, None, optimal=False)
        target += SETTINGS.target_step_share * lacking
