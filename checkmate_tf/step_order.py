"""What each step must wait for so that it starts after others, by few edges beside those of the data."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Known:
    """What has ended when a step starts: all steps before `before`, and those of `others`."""

    before: int
    others: frozenset[int]


class StepOrder:
    """The steps so far, in order."""

    def __init__(self) -> None:
        self.known: list[_Known | None] = []

    def free_step(self) -> None:
        """A step that waits for nothing, and that nothing waits for."""
        self.known.append(None)

    def step(self, begin: int, ended: Collection[int], waited_for: Iterable[int] = ()) -> list[int]:
        """The steps that the next one waits for, so that it starts after every step before `begin`.

        Args:
            begin: at least that of the steps before.
            ended: steps whose end its data wait for.
            waited_for: steps before `begin` that it waits for in any case, unless its data wait for that very step.
        """
        before, others, waits = 0, set[int](), []

        def learn(step: int) -> None:
            nonlocal before
            known = self.known[step]
            assert known is not None
            before = max(before, known.before)
            others.update(known.others, [step])

        for step in ended:
            learn(step)
        for step in waited_for:
            if step not in ended:
                waits.append(step)
                learn(step)
        for step in reversed(range(begin)):
            if step < before:
                break
            if step not in others and self.known[step] is not None:
                waits.append(step)
                learn(step)
        self.known.append(_Known(begin, frozenset(step for step in others if step >= begin)))
        return waits
