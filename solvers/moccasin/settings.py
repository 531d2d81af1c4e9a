"""The numbers that steer MOCCASIN's search besides its options, and the trade-off behind each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rung:
    """A model of the bound.

    Args:
        stages_only: leave the order within stages open, which makes the model smaller and its bound lower.
        max_computations: C_v. A larger one comes closer to the problem.
        max_rows: limit of the implied rows of memory. More rows raise the bound and enlarge the model.
    """

    stages_only: bool
    max_computations: int
    max_rows: int


@dataclass(frozen=True)
class Settings:
    """Steers the search.

    Args, of the shares of the remaining time:
        start_share: for the solver whose schedule to begin with.
        improve_share: for one series of neighbourhoods.
        bound_share: for one model of the bound, if there are at most `max_events` recomputations.
        large_bound_share: the same if there are more, so that neighbourhoods have their turn.
        order_share: for an order of less peak, in free order.

    Args, of the bound:
        rungs: models solved one after the other. Each is closer to the problem, and harder, than the one before.
        max_events: limit of the possible recomputations in total. With more, models with the order within stages are
            left out.
        event_bytes: memory for each possible recomputation of a model, including CP-SAT's. Models that would take more
            than the search may are left out.
        max_positions: limit of the sequence for free order. Longer ones are too hard to be solved.
        sequence_computations: C_v of that sequence.

    Args, of offloading:
        copies_share: share of the time for the bound from the copies (offloading/bound.py).
        max_fetches: how often a model may fetch a value. In a model of the bound, the last fetch stands for all further
            ones.
        max_timed_events: limit of the possible recomputations of a model of the bound, each of which has a time.

    Args, of the neighbourhoods:
        work_limit: limit of CP-SAT's deterministic time for one, roughly in seconds. More closes larger neighbourhoods,
            and leaves time for fewer.
        first_freed: number of nodes freed in the first one.
        least_freed: least number of nodes freed.
        most_freed: largest number of nodes freed. More searches further around, and takes CP-SAT longer.
        more_freed_ratio: the number of nodes freed next, relative to the present number, after CP-SAT has finished.
        fewer_freed_ratio: the same if it has not.
        radius_ratio: a window of positions reaches, on either side, at most this many times as many positions as nodes
            are freed.
    """

    start_share: float = 0.3
    improve_share: float = 0.3
    bound_share: float = 0.7
    large_bound_share: float = 0.3
    order_share: float = 0.2

    rungs: tuple[Rung, ...] = (
        Rung(True, 2, 0),
        Rung(True, 2, 100),
        Rung(False, 3, 100),
        Rung(False, 8, 100),
        Rung(False, 32, 100),
        Rung(False, 1024, 100),
    )
    max_events: int = 40_000
    event_bytes: int = 2000
    max_positions: int = 64
    sequence_computations: int = 6

    copies_share: float = 0.1
    max_fetches: int = 2
    max_timed_events: int = 2000

    work_limit: float = 0.3
    first_freed: float = 16.0
    least_freed: int = 6
    most_freed: int = 80
    more_freed_ratio: float = 1.1
    fewer_freed_ratio: float = 0.85
    radius_ratio: int = 8


SETTINGS = Settings()
