"""Finds the positions of a schedule that must be told to wait so that each starts after all that it has to; data order
most of them already.
"""

from collections.abc import Collection


class NeededWaits:
    """Needed waits hold, for each position so far, the one before which it began; None where nothing waits for it."""

    def __init__(self) -> None:
        self.begins: list[int | None] = []

    def add_free(self) -> None:
        """Adds a position that waits for nothing, and that nothing waits for."""
        self.begins.append(None)

    def add(self, begin: int, ended: Collection[int]) -> bool:
        """Adds a position; returns whether it must wait for those before `begin`, because its data do not.

        Args:
            begin: at least that of the positions before.
            ended: positions whose end its data wait for.
        """
        known = max((self.begins[position] or 0 for position in ended), default=0)
        missing = [at for at in range(known, begin) if at not in ended and self.begins[at] is not None]
        self.begins.append(begin)
        return bool(missing)
