"""Finds the steps that must be told to wait so that each starts after all that it has to; data order most of them
already.
"""

from collections.abc import Collection


class StepOrder:
    """A step order holds, for each step so far, the step before which it began; None for one that nothing waits for."""

    def __init__(self) -> None:
        self.begins: list[int | None] = []

    def add_free_step(self) -> None:
        """Adds a step that waits for nothing, and that nothing waits for."""
        self.begins.append(None)

    def add_step(self, begin: int, ended: Collection[int]) -> bool:
        """Adds a step; tells whether it must wait for the steps before `begin`, because its data do not.

        Args:
            begin: at least that of the steps before.
            ended: steps whose end its data wait for.
        """
        known = max((self.begins[step] or 0 for step in ended), default=0)
        missing = [step for step in range(known, begin) if step not in ended and self.begins[step] is not None]
        self.begins.append(begin)
        return bool(missing)
