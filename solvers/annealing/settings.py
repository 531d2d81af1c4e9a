"""The numbers that steer annealing in stage space, and the trade-off behind each.

The compiled moves read them when they are compiled, and Numba does not notice a change of this file: after a change,
delete `__pycache__` beside it.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Cooling(NamedTuple):
    """One cooling, from hot to cold.

    Args:
        heat: the first temperature, in mean costs of a recomputation.
        most_rise: limit of the rise of the logarithm of the price of overflow, over the whole cooling.
        times: factor on the number of moves asked for.
    """

    heat: float
    most_rise: float
    times: int


@dataclass(frozen=True)
class Settings:
    """Steers the annealing.

    Args, of the rounds (`solver.py`):
        still_moves: a cooling ends after this many moves above the budget that changed nothing, because such moves are
            the slowest. With fewer, a cooling may end that would still have come within the budget.
        longer_round_ratio: length of a round, relative to the round before. Longer coolings find better schedules, but
            there is time for fewer of them.
        longer_in_vain_ratio: the same while no schedule within the budget is known.
        merge_work: limit of CP-SAT's deterministic time for one merging, roughly in seconds. More merges larger pools,
            and leaves less time for annealing.
        first_pool_events: largest number of recomputations in the first pool.
        least_pool_events: lower limit of the pool's size.
        pool_step: a pair (a, b). The pool's size is multiplied by a / b when CP-SAT proved the optimum of the last
            pool, and by b / a when it did not.
        full_pool_share: a proof makes the pool grow only if it covered at least this share of the pool's size.
        kept_sets: number of annealed sets from which later pools are drawn. More sets make more varied pools.
        max_memory_terms: limit of the terms in all memory rows of one merging. A larger model would take too much
            memory and time.

    Args, of each cooling (`annealer.py`):
        coolings: the coolings, which take turns. The hot ones begin with far more recomputations than the budget needs
            and therefore approach it from below, if the price rises slowly enough; at tight budgets, the others freeze
            above it. The cold one suits costs that differ much, such as those of convolutions and normalizations. The
            hot ones make more moves, which are fast, because most of them stay within the budget.
        cold_ratio: the last temperature relative to the first. A lower ratio refines the schedule more, and makes fewer
            moves at temperatures that still change much.
        gentle_heat: the first temperature of a gentle cooling, in mean costs of the present recomputations. A higher
            one forgets more of them.
        gentle_rise: `most_rise` of a gentle cooling.
        hurried_heat: highest `heat` of a cooling that may be cut short.
        fastest_rise: largest change of the logarithm of the price from one adaptation to the next.
        first_price_share: at the first price, the overflow of the input order costs this share of the baseline cost.
        least_price_ratio: the lowest price relative to the first.
        most_price_ratio: the highest price relative to the first. Above the budget, the price would otherwise rise
            without end.
        chunk_node_moves: moves times nodes of the graph between two looks at the clock and at the results of other
            searches.
        small_share: share of the budget that the smallest values together may take. Such values are left out, because
            most of the time would otherwise go to scalars that hundreds of nodes read.
        events_per_node: capacity for recomputations, per node.
        spare_events: further capacity, for small graphs.

    Args, of each move (`stage_moves.py`). A draw from 0 to 1 is compared with the five ends below, in this order, and
    so selects the move. Above the budget, half of the moves relieve it. Within the budget the draw is shifted upwards,
    so that no move relieves and most moves are removals and exchanges:
        relief_end: drop a value at an event above the budget. More of these reach the budget sooner, at a higher cost.
        drop_end: drop a value anywhere, which makes room for others. More of these add useless recomputations.
        removal_end: remove a recomputation, which saves its cost. More of these exceed the budget more often.
        exchange_end: remove a recomputation and drop other values instead. This is the slowest move, and the only one
            that keeps the memory.
        shift_end: move a recomputation to another stage. A draw beyond this end is a removal again.
        within_budget_start: added to the draw within the budget.
        pruned_share: share of the moves that give up as soon as they cost more than the temperature allows. The others
            find moves that make earlier recomputations useless.
        early_share: share of the dropped values that are recomputed in a stage before the one that reads them.
        drop_tries: number of values examined to find one that can be dropped. More tries rarely fail, but are slow when
            every value has to stay.
        far_bits: a shift goes up to 2 ** (far_bits - 1) stages far; short shifts are the most likely.
        exchange_bits: an exchange drops up to 2 ** (exchange_bits - 1) values; few are the most likely.
        priced_moves: moves from one adaptation of the price of overflow to the next. With fewer, the price follows
            faster and is noisier.
        least_within_moves: the price rises if fewer of these moves end within the budget.
        most_within_moves: the price falls if more of these moves end within the budget.
        least_price_noise: the price of each recomputation is multiplied by a draw from this number to this number plus
            1, so that the same move does not always choose the same recomputations.
        max_closure_nodes: number of nodes considered for one recomputation and everything that it needs. More finds
            longer chains, and is slower.
        chunk_stages: number of stages whose memory is kept together. Longer chunks make small changes slower and large
            changes faster.
    """

    still_moves: int = 4096
    longer_round_ratio: float = 1.1
    longer_in_vain_ratio: float = 1.5
    merge_work: float = 2.0
    first_pool_events: int = 300
    least_pool_events: int = 50
    pool_step: tuple[int, int] = (3, 2)
    full_pool_share: float = 0.7
    kept_sets: int = 200
    max_memory_terms: int = 2_000_000

    coolings: tuple[Cooling, ...] = (
        Cooling(0.3, 40.0, 1),
        Cooling(5.0, 10.0, 3),
        Cooling(0.03, 10.0, 1),
        Cooling(3.0, 20.0, 3),
    )
    cold_ratio: float = 1e-3
    gentle_heat: float = 0.3
    gentle_rise: float = 40.0
    hurried_heat: float = 3.0
    fastest_rise: float = 0.1
    first_price_share: float = 0.05
    least_price_ratio: float = 1e-4
    most_price_ratio: float = 1e5
    chunk_node_moves: int = 300_000
    small_share: float = 1e-5
    events_per_node: int = 16
    spare_events: int = 1024

    relief_end: float = 0.5
    drop_end: float = 0.55
    removal_end: float = 0.7
    exchange_end: float = 0.9
    shift_end: float = 1.3
    within_budget_start: float = 0.4
    pruned_share: float = 0.95
    early_share: float = 0.2
    drop_tries: int = 40
    far_bits: int = 8
    exchange_bits: int = 6
    priced_moves: int = 256
    least_within_moves: int = 64
    most_within_moves: int = 96
    least_price_noise: float = 0.5
    max_closure_nodes: int = 128
    chunk_stages: int = 16


SETTINGS = Settings()
