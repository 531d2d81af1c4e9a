"""The numbers that steer annealing in stage space, and what each of them trades.

The compiled moves read theirs when they are compiled, and numba does not see that this file has changed: after a change
delete `__pycache__` beside it.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Cooling(NamedTuple):
    """How one cooling, from hot to cold, is made.

    Args:
        heat: the temperature it begins at, in mean costs of a recomputation.
        most_rise: the logarithm of the price of overflow rises by no more than this in the whole of it.
        times: how many times the moves asked for are made.
    """

    heat: float
    most_rise: float
    times: int


@dataclass(frozen=True)
class Settings:
    """How the annealing proceeds.

    Args, of the rounds (`solver.py`):
        still_moves: a cooling ends where, above the budget, so many moves have changed nothing: such moves are the
            slowest. Fewer may end one that would still have found its way.
        longer_round_ratio: of a round to the one before. Longer coolings find better schedules, and fewer of them.
        longer_in_vain_ratio: the same as long as no schedule within the budget is known.
        merge_work: CP-SAT's deterministic time for one merging, which is about seconds. More merges larger pools, and
            leaves less time for annealing.
        first_pool_events: recomputations that the first merging may choose from, at most.
        least_pool_events: the pool becomes no smaller than this.
        pool_step: the pool grows by the first over the second of these where the best of it was proved, and shrinks
            by the second over the first where not.
        full_pool_share: of the pool's size, above which a proof makes it grow; a smaller pool says nothing of it.
        kept_sets: annealed sets of recomputations that later pools are drawn from. More gives more varied pools.
        max_memory_terms: in all memory rows of one merging. With more the model would take too much memory and time.

    Args, of each cooling (`annealer.py`):
        coolings: made in turn. The hot ones begin with far more recomputations than the budget needs, so that they come
            from within the budget, if the price rises slowly enough; where the budget is tight, the others freeze
            above it. The cold one is for costs that differ much, as those of convolutions and normalizations. The
            hot ones have more moves, which are fast, as most of them are within the budget.
        cold_ratio: of the temperature at the end to that at the beginning. Less refines more, with fewer moves
            where they still change much.
        gentle_heat: where a gentle cooling begins, in mean costs of the present recomputations. More forgets more.
        gentle_rise: `most_rise` of a gentle cooling.
        hurried_heat: the highest `heat` of a cooling that may be cut short.
        fastest_rise: of the logarithm of the price, from one look at it to the next.
        first_price_share: of the baseline cost, that the overflow of the input order costs at the first price.
        least_price_ratio: of the lowest price to the first one.
        most_price_ratio: of the highest price to the first one. Where the budget is not met the price runs away.
        chunk_node_moves: moves times nodes of the graph, between two looks at the clock and at what others have found.
        small_share: of the budget. The least values are left out, up to this much in all, as scalars that hundreds of
            nodes read would take most of the time.
        events_per_node: recomputations that there is room for.
        spare_events: room for so many more, for small graphs.

    Args, of each move (`stage_moves.py`). Which move is made follows from a draw from 0 to 1, which is compared with
    the five ends below in turn. Above the budget half of the moves relieve it. Within the budget the draw begins later,
    so that none does, and most are removals and exchanges:
        relief_end: drops a value where the budget is exceeded. More of these get within the budget sooner, at a
            higher cost.
        drop_end: drops a value anywhere, which makes room for others. More of these add recomputations in vain.
        removal_end: removes a recomputation, which saves its cost. More of these exceed the budget more often.
        exchange_end: removes a recomputation and drops other values instead: the slowest move, and the one that keeps
            the memory.
        shift_end: moves a recomputation to another stage. What is drawn beyond is a removal again.
        within_budget_start: what is added to the draw within the budget.
        pruned_share: of the moves, which give up once they cost more than the temperature allows. The others find
            what makes former recomputations useless.
        early_share: of the values dropped, which are recomputed in a stage before the one that reads them.
        drop_tries: values looked at for one that can be dropped. More are seldom in vain, but slow where all stay.
        far_bits: a shift is over up to 2 ** (far_bits - 1) stages; short ones are likeliest.
        exchange_bits: an exchange drops up to 2 ** (exchange_bits - 1) values; few are likeliest.
        priced_moves: from one look at the price of overflow to the next. With fewer it follows faster, and is noisier.
        least_within_moves: of those that end within the budget. With fewer the price rises.
        most_within_moves: of those that end within the budget. With more the price falls.
        least_price_noise: prices of recomputations are multiplied by a draw from this to this plus 1, so that the same
            move does not always choose the same ones.
        max_closure_nodes: considered for one recomputation with all that it needs. More finds longer chains, slower.
        chunk_stages: stages whose memory is kept together. Longer chunks make few changes slower, and many faster.
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
