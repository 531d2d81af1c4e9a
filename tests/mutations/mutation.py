"""A mutation, and how it is applied."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """A mutation replaces one place of a file by a fault.

    Args:
        path: of the file in the package as it is installed.
        old: the text to replace; it must be in the file once.
        why: what goes wrong for a user, so that a test must catch it.
        tests: what pytest is given, quick ones.
    """

    path: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]

    def apply(self, text: str) -> str:
        """Returns the text of the file with the fault in it."""
        if text.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"{self.path} has {self.old!r} {text.count(self.old)} times: bring the list up to date")
        return text.replace(self.old, self.new)
