"""Chooses the target of the next schedule of a search, from the peaks of the schedules before it.

A target limits the predicted peak.
"""

import math
from dataclasses import dataclass

from checkmate_tf.executors.step import Step
from checkmate_tf.planning.attempt import Attempt
from checkmate_tf.simulator import simulate_stock


@dataclass(frozen=True)
class Settings:
    """Steers the search for a plan. Every number is a share or a factor, except `max_rounds` and `least_rounds`.

    Args:
        headroom: a schedule is planned to leave this share of the non-resident bytes unused. More headroom saves
            rounds, and costs overhead.
        max_excess: the first schedule is planned as if its step took at most this many times the predicted bytes. A
            stock step can take far more, because TensorFlow computes products with constants ahead; a rewritten step
            cannot.
        good_use: a schedule that uses this share of the budget ends the search.
        max_rounds: largest number of schedules that are measured before the search takes the best one.
        tolerance: a solver may stop when its schedule costs this share of the stock step more than its lower bound, and
            the search when it costs this share more than the stock step.
        solver_share: each round gets this share of the time that the solver has left, and twice as much after a round
            that found nothing.
        unmeasured_share: if no step is measured, the one round gets this share of the solver's time, and the rest is
            for solving again in another input order.
        lowering: if TensorFlow refuses a schedule, the next target is this many times the last one.
        least_saving: nodes are made to wait for each other if that saves at least this share of the stock cost.
        resolution: two targets that differ by less than this share of the budget count as the same.
        later_spread: if nodes run side by side, later steps are expected to take up to this share more than the
            measured ones, because nodes run in another order, and the allocator's chunks differ.
        least_share: the schedule of least memory gets at least this share of the solver's time if no other schedule was
            found. It gets this share for a budget below the need of one node, because the error names the least budget
            known to work.
        least_gap: before a budget is refused, other schedules are measured, too, until the least peak is at most this
            share above the prediction for the schedule of least memory.
        least_rounds: largest number of these.
        pattern_share: share of the solver's time for finding the cost of patterns of nodes to keep or to recompute.
        named_margin: the least budget named in an error is this share above the measured peak.
    """

    headroom: float = 0.03
    max_excess: float = 1.1
    good_use: float = 0.95
    max_rounds: int = 5
    tolerance: float = 0.01
    solver_share: float = 0.15
    unmeasured_share: float = 0.7
    lowering: float = 0.98
    least_saving: float = 0.01
    resolution: float = 0.005
    later_spread: float = 0.02
    least_share: float = 0.25
    least_gap: float = 0.1
    least_rounds: int = 3
    pattern_share: float = 0.1
    named_margin: float = 0.02


def find_first_target(step: Step, budget_bytes: int, *, stock_bytes: int | None, settings: Settings) -> int:
    """Returns a target for the first schedule whose step is expected to stay within a budget.

    Args:
        stock_bytes: the measured peak of the stock step; None if no step is measured, and the predictions are used.
    """
    if stock_bytes is None:
        return budget_bytes
    resident_bytes, excess = step.graph.resident_bytes, _find_excess(step, stock_bytes, settings)
    return resident_bytes + int((budget_bytes - resident_bytes) / excess * (1 - settings.headroom))


def find_first_budget(step: Step, target_bytes: int, *, stock_bytes: int, settings: Settings) -> int:
    """Returns a budget for which `find_first_target` returns a target."""
    resident_bytes, excess = step.graph.resident_bytes, _find_excess(step, stock_bytes, settings)
    return resident_bytes + math.ceil((target_bytes + 1 - resident_bytes) * excess / (1 - settings.headroom))


def _find_excess(step: Step, stock_bytes: int, settings: Settings) -> float:
    """Returns the expected ratio of a step's non-resident bytes to those that its schedule requests."""
    resident_bytes = step.graph.resident_bytes
    asked = simulate_stock(step.graph).peak_bytes - resident_bytes  # with measured workspace
    if not step.exceeds_as_stock or asked <= 0:
        return 1.0
    stock_asked = stock_bytes - step.resident.offloaded - resident_bytes
    return min(max(stock_asked / asked, 1.0), settings.max_excess)


@dataclass
class Bracket:
    """The schedules next to the budget, one above and one within it, and the targets left between them.

    Targets up to `floor_bytes` are not worth solving for: either they have no schedule, or it leaves more of the budget
    unused than a known one.
    """

    budget_bytes: int
    settings: Settings
    above: Attempt | None = None
    within: Attempt | None = None
    floor_bytes: int = 0

    def note(self, attempt: Attempt) -> None:
        """Takes a schedule into account."""
        if attempt.peak_bytes > self.budget_bytes:
            self.above = min(self.above or attempt, attempt, key=lambda one: one.predicted_bytes)
        else:
            self.within = max(self.within or attempt, attempt, key=lambda one: one.predicted_bytes)

    def raise_floor(self, target_bytes: int) -> None:
        """Excludes a target and all lower ones."""
        self.floor_bytes = max(self.floor_bytes, target_bytes)

    def find_next_target(self, resident_bytes: int) -> int | None:
        """Returns the target whose measured peak should reach the budget, from the schedules next to it, or None."""
        budget_bytes = self.budget_bytes
        wanted = resident_bytes + (1 - self._find_headroom()) * (budget_bytes - resident_bytes)
        low = max(self.floor_bytes, self.within.predicted_bytes if self.within else 0)
        high = self.above.predicted_bytes if self.above else budget_bytes + 1  # The budget may be a target.
        if high - low <= self.settings.resolution * budget_bytes:
            return None
        if self.above and self.within:
            share = (wanted - self.within.peak_bytes) / max(self.above.peak_bytes - self.within.peak_bytes, 1)
            target = self.within.predicted_bytes + share * (self.above.predicted_bytes - self.within.predicted_bytes)
        elif self.above:
            target = _scale_target(self.above, wanted, resident_bytes)
        elif self.within:
            target = _scale_target(self.within, wanted, resident_bytes)
        else:
            target = (self.floor_bytes + budget_bytes) / 2
        if not low < int(target) < high:
            target = (low + high) / 2
        return int(target)

    def _find_headroom(self) -> float:
        """Returns the share to leave unused: none once a step that XLA compiled, whose peak is exact, has fitted."""
        run = self.within.run if self.within else None
        return 0.0 if run is not None and run.is_compiled else self.settings.headroom


def _scale_target(attempt: Attempt, wanted: float, resident_bytes: int) -> float:
    """Returns the target for which a peak with this schedule's ratio to the predicted one would be the wanted peak.

    The bytes that steps hold after their end stay the same, and the rest grows with the target.
    """
    kept = resident_bytes + attempt.held_bytes
    share = max(wanted - kept, 0) / max(attempt.peak_bytes - kept, 1)
    return resident_bytes + (attempt.predicted_bytes - resident_bytes) * share
