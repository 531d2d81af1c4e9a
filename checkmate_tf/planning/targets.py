"""What the next schedule of a search is planned for, by what the schedules before it took.

Targets are for the predicted peak.
"""

from dataclasses import dataclass

from checkmate_tf.planning.tried import Tried


@dataclass(frozen=True)
class Settings:
    """How the search proceeds.

    Args:
        headroom: share of what is not resident that a schedule is planned to leave free.
        most_beyond: what the first schedule is expected to take at most, over what was predicted. Stock steps may take
            far more, where TensorFlow computes products with constants ahead, which rewritten steps do not.
        used: a schedule that uses this share of the budget is good enough.
        max_rounds: schedules measured before the search settles for the best one.
        tolerance: a solver's schedule may cost this share of the stock step more than its bound.
        solver_share: of the solver's time that is left, for each round; twice as much after a round that found nothing.
        lower: the next target, where TensorFlow refuses a schedule, over the one before.
        worth: share of the stock step's cost that must be saved for each node to wait for the one before it.
        resolution: targets that differ by less than this share are the same.
        spread: share of what is not resident that later steps may take more than those measured, where nodes run side
            by side: they come in another order, and so do the allocator's chunks.
        least_share: of the solver's time, at least, to look for the schedule of least memory where no other was found.
        hopeless_share: of the solver's time, to find what a budget that is less than one node needs would have to be.
        named: what a budget that is named as the least must have above what was measured.
    """

    headroom: float = 0.03
    most_beyond: float = 1.1
    used: float = 0.95
    max_rounds: int = 5
    tolerance: float = 0.01
    solver_share: float = 0.15
    lower: float = 0.98
    worth: float = 0.01
    resolution: float = 0.005
    spread: float = 0.02
    least_share: float = 0.25
    hopeless_share: float = 0.1
    named: float = 0.02


@dataclass
class Bracket:
    """The schedules next to the budget, one above it and one within, and the targets that are left between them.

    Targets up to `floor_bytes` are not worth solving for: either there is no schedule, or it leaves more of the budget
    unused than one that is known.
    """

    budget_bytes: int
    settings: Settings
    above: Tried | None = None
    within: Tried | None = None
    floor_bytes: int = 0

    def note(self, tried: Tried) -> None:
        """Takes a schedule into account."""
        if tried.peak_bytes > self.budget_bytes:
            self.above = min(self.above or tried, tried, key=lambda one: one.predicted_bytes)
        else:
            self.within = max(self.within or tried, tried, key=lambda one: one.predicted_bytes)

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


def _scale_target(tried: Tried, wanted: float, resident_bytes: int) -> float:
    """Returns the target at which a peak as much above the predicted one as this schedule's is the one wanted.

    What the steps leave behind stays the same; the rest grows with the target.
    """
    kept = resident_bytes + tried.held_bytes
    share = max(wanted - kept, 0) / max(tried.peak_bytes - kept, 1)
    return resident_bytes + (tried.predicted_bytes - resident_bytes) * share
