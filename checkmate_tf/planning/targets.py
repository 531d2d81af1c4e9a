"""Chooses what the next schedule of a search is planned for, by what the schedules before it took.

Targets are for the predicted peak.
"""

import math
from dataclasses import dataclass

from checkmate_tf.executors.step import Step
from checkmate_tf.planning.attempt import Attempt
from checkmate_tf.simulator import simulate_stock


@dataclass(frozen=True)
class Settings:
    """These settings say what the search for a plan takes for granted. Every number is a share or a factor, except
    `max_rounds` and `least_rounds`.

    Args:
        headroom: A schedule is planned to leave this share of the bytes that are not resident unused. More headroom
            saves rounds, and costs overhead.
        max_excess: The first schedule is planned as if it took at most this many times the predicted bytes. A stock
            step can take far more, because TensorFlow computes products with constants ahead; a rewritten step cannot.
        good_use: A schedule that uses this share of the budget ends the search.
        max_rounds: So many schedules are measured before the search takes the best one.
        tolerance: A solver may stop when its schedule costs this share of the stock step more than its lower bound,
            and the search when it costs this share more than the stock step.
        solver_share: Each round gets this share of the time that the solver has left, and twice as much after a round
            that found nothing.
        unmeasured_share: Where no step is measured, the one round gets this share of the solver's time, and the rest is
            for solving again in another input order.
        lowering: Where TensorFlow refuses a schedule, the next target is this many times the last one.
        least_saving: Nodes are made to wait for each other where that saves at least this share of the stock cost.
        resolution: Two targets that differ by less than this share of the budget count as the same.
        later_spread: Where nodes run side by side, later steps are expected to take up to this share more than the
            measured ones: the nodes come in another order, and so do the allocator's chunks.
        least_share: The schedule of least memory gets at least this share of the solver's time, where no other
            schedule was found.
        hopeless_share: A budget below what one node needs is answered with the least budget known to work, for which
            the solver gets this share of its time.
        least_gap: For such a budget other schedules are measured too, until the least peak is at most this share above
            what is predicted for the schedule of least memory.
        least_rounds: At most so many of them are measured.
        pattern_share: To find what the patterns of nodes to keep or to recompute cost gets this share of the solver's
            time.
        named_margin: The least budget named in an error is this share above the measured peak.
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
    hopeless_share: float = 0.1
    least_gap: float = 0.1
    least_rounds: int = 3
    pattern_share: float = 0.1
    named_margin: float = 0.02


def find_first_target(step: Step, budget_bytes: int, *, stock_bytes: int | None, settings: Settings) -> int:
    """Finds what a schedule may ask for and, with what it is expected to take beyond that, keep to a budget.

    Args:
        stock_bytes: the measured peak of the stock step; None where no step is measured, and what is predicted holds.
    """
    if stock_bytes is None:
        return budget_bytes
    resident_bytes, excess = step.graph.resident_bytes, _find_excess(step, stock_bytes, settings)
    return resident_bytes + int((budget_bytes - resident_bytes) / excess * (1 - settings.headroom))


def find_first_budget(step: Step, target_bytes: int, *, stock_bytes: int, settings: Settings) -> int:
    """Finds a budget for which the first schedule may ask for a target."""
    resident_bytes, excess = step.graph.resident_bytes, _find_excess(step, stock_bytes, settings)
    return resident_bytes + math.ceil((target_bytes + 1 - resident_bytes) * excess / (1 - settings.headroom))


def _find_excess(step: Step, stock_bytes: int, settings: Settings) -> float:
    """Finds how many times the bytes that a schedule asks for, beside resident ones, its step is expected to take."""
    resident_bytes = step.graph.resident_bytes
    asked = simulate_stock(step.graph).peak_bytes - resident_bytes  # This counts the workspace that was measured since.
    if not step.exceeds_as_stock or asked <= 0:
        return 1.0
    return min(max((stock_bytes - resident_bytes) / asked, 1.0), settings.max_excess)


@dataclass
class Bracket:
    """A bracket holds the schedules next to the budget, one above it and one within, and the targets left between them.

    Targets up to `floor_bytes` are not worth solving for: either there is no schedule, or it leaves more of the budget
    unused than one that is known.
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
        """Rules out a target and all that are lower."""
        self.floor_bytes = max(self.floor_bytes, target_bytes)

    def find_next_target(self, resident_bytes: int) -> int | None:
        """Finds where the measured peak should reach the budget, by the schedules next to it; None if nowhere."""
        budget_bytes = self.budget_bytes
        wanted = resident_bytes + (1 - self.settings.headroom) * (budget_bytes - resident_bytes)
        low = max(self.floor_bytes, self.within.predicted_bytes if self.within else 0)
        high = self.above.predicted_bytes if self.above else budget_bytes
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


def _scale_target(attempt: Attempt, wanted: float, resident_bytes: int) -> float:
    """Returns the target at which a peak as much above the predicted one as this schedule's is the one wanted.

    What the steps leave behind stays the same; the rest grows with the target.
    """
    kept = resident_bytes + attempt.held_bytes
    share = max(wanted - kept, 0) / max(attempt.peak_bytes - kept, 1)
    return resident_bytes + (attempt.predicted_bytes - resident_bytes) * share
