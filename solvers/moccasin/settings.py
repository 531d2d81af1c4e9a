"""The numbers that steer MOCCASIN's search beside its options, and what each of them trades."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rung:
    """A model of the bound.

    Args:
        stages_only: leaves the order within stages open, which makes the model smaller and its bound lower.
        max_computations: C_v. More comes closer to the problem.
        max_rows: implied rows of memory, at most. More raises the bound, and makes the model larger.
    """

    stages_only: bool
    max_computations: int
    max_rows: int


@dataclass(frozen=True)
class Settings:
    """How the search proceeds.

    Args, of the shares of the time that is left:
        start_share: for the solver whose schedule to begin with.
        improve_share: for one series of neighbourhoods.
        bound_share: for one model of the bound, where there are at most `max_events` recomputations.
        large_bound_share: the same where there are more, so that neighbourhoods have their turn.
        order_share: for an order of less peak, in free order.

    Args, of the bound:
        rungs: models solved one after the other. Each is closer to the problem, and harder, than the one before.
        max_events: possible recomputations in all. With more, models with the order within stages are left out.
        event_bytes: memory for each possible recomputation of a model, with what CP-SAT makes of it. Models that would
            take more than the search may are left out.
        max_positions: of the sequence that free order allows. Longer ones are too hard to be solved.
        sequence_computations: C_v of that sequence.

    Args, of the neighbourhoods:
        work_limit: CP-SAT's deterministic time for one, which is about seconds. More closes larger neighbourhoods, and
            leaves time for fewer.
        first_freed: nodes freed in the first one.
        least_freed: nodes freed, at least.
        most_freed: nodes freed, at most. More looks further around, and takes CP-SAT longer.
        more_freed_ratio: of the nodes freed next to those freed now, where CP-SAT has answered.
        fewer_freed_ratio: the same where it has not.
        radius_ratio: a window of positions reaches, on either side, at most this many times as far as nodes are freed.
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

    work_limit: float = 0.3
    first_freed: float = 16.0
    least_freed: int = 6
    most_freed: int = 80
    more_freed_ratio: float = 1.1
    fewer_freed_ratio: float = 0.85
    radius_ratio: int = 8


SETTINGS = Settings()
