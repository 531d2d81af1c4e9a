"""The numbers that steer the two solvers of Checkmate beside their options, and what each of them trades."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How the searches proceed.

    Args:
        start_part: one in so many parts of the time limit is for the first schedule. A better one leaves a smaller
            program, a longer search for it leaves less time to solve that.
        start_checkpoint_sizes: sizes tried by the greedy solver, which gives the first schedule where no other does.
        start_moves_per_node: of the annealing, which gives a first schedule near the optimum where it has the time.
        idle_allowances: in a row without a cheaper schedule, after which the rounding ends.
        space_bytes: memory for each pair of a stage and a node or value: what the searches hold of it, and what
            numpy takes on the way.
        build_share: of the time left, for building the program. Libraries look at no clock while they read and presolve
            it, and while HiGHS looks for a first point, which takes some ten times as long as building it took.
        hint_share: of the time left. Where building took more, the program gets no schedule to begin with: HiGHS solves
            a linear program to complete one, and then presolves whatever the time.
        entry_bytes: memory for each entry of the program's matrix, with the copies that building makes of it and
            those that the libraries work on.
        more_repeats_ratio: a smaller budget may take so many times the repeats of the schedule that set the cutoff.
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
