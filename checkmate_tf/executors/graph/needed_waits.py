"""Finds the positions of a schedule that need control edges. The data of most positions wait already."""

from collections.abc import Collection


class NeededWaits:
    """Holds the begin of each position so far: it waits for all positions before that one.

    It is None for a position for which none waits.
    """

    def __init__(self) -> None:
        self.begins: list[int | None] = []

    def add_free(self) -> None:
        """Adds a position that waits for none, and for which none waits."""
        self.begins.append(None)

    def add(self, begin: int, ended: Collection[int]) -> bool:
        """Adds a position. Returns whether it needs control edges to wait for all positions before `begin`.

        Args:
            begin: at least that of the positions before.
            ended: positions for whose end its data wait.
        """
        known = max((self.begins[position] or 0 for position in ended), default=0)
        missing = [at for at in range(known, begin) if at not in ended and self.begins[at] is not None]
        self.begins.append(begin)
        return bool(missing)
