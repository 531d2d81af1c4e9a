"""The numbers that steer the two solvers of Checkmate besides their options, and the trade-off behind each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Steers both searches.

    Args:
        start_part: the first schedule gets one part of this many parts of the time limit. A better one makes the
            program smaller, but a longer search for it leaves less time to solve the program.
        start_checkpoint_sizes: sizes tried by the greedy solver, which provides the first schedule if no other solver
            does.
        start_moves_per_node: moves of the annealing, which finds a first schedule near the optimum if it has the time.
        idle_allowances: rounding ends after this many allowances in a row without a cheaper schedule.
        space_bytes: memory for each pair of a stage and a node or value, which includes numpy's temporary arrays.
        build_share: share of the remaining time for building the program. Libraries check no clock while they read and
            presolve it, nor does HiGHS while it looks for a first point, which takes some ten times as long as
            building.
        hint_share: share of the remaining time. If building took longer, the program gets no schedule to begin with,
            because HiGHS solves a linear program to complete it and then presolves without checking the time.
        entry_bytes: memory for each entry of the program's matrix, with the copies made while building it and those in
            the libraries.
        more_repeats_ratio: the cost of repeats that a smaller budget may take, relative to the schedule that set the
            cutoff.
    """

    start_part: int = 5
    start_checkpoint_sizes: int = 10
    start_moves_per_node: int = 1000
    idle_allowances: int = 2
    more_repeats_ratio: int = 2
    build_share: float = 0.06
    hint_share: float = 0.03
    space_bytes: int = 12
    entry_bytes: int = 200


SETTINGS = Settings()
