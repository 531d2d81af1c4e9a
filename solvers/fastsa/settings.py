"""The numbers that steer FastSA beside its options, and what each of them trades.

The compiled moves read theirs when they are compiled, and numba does not see that this file has changed: after a change
delete `__pycache__` beside it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How the annealing of sequences proceeds.

    Args, of the whole search (`solver.py`):
        order_share: of the time limit, for an order of less peak to begin with. More leaves less for annealing.
        patience_share: of the time that is left, after which an annealing that has met no budget gives way to a
            descent. Less gives up on budgets that would still be met.
        large_nodes: a graph with more nodes counts as large: its first round is short, to learn how many mutations
            fit into the time.
        large_slots: the same for a sequence with more slots.
        first_iterations: mutations of that first round.
        turns: of a round, at least, after each of which the time is looked at. More ends closer to the deadline.
        turn_iterations: mutations of a turn, at most.
        max_fetches: of a schedule that can be kept as the best.

    Args, of the descent, which begins hot with a high penalty where no budget was met:
        descent_penalty: per budget's worth of excess, in the cost of computing every node once.
        descent_cooling: a round ends at this share of its first temperature or above while the budget is not met.
        descent_values: about so many values of the mean size more or less do not matter at first.
        max_descent_temperature: in the cost of computing every node once. A hotter one would fill the sequences of
            small graphs at random.

    Args, of a sequence:
        max_slots: the paper's sequences are that long (appendix D.4); longer only where the positions need it.
        least_slots_bits: a sequence has at least 2 to this power slots.
        largest_doublings: with LogAddExp, how often the largest value doubles a weight. More comes closer to the
            maximum, less gives more of a slope to follow.
        drawn_values: drawn before the annealing for chains to take from. More follows the chances below closer.
        by_size_share: of these, drawn in proportion to size; the others uniformly.

    Args, of the loop (`kernel.py`):
        cooled_moves: mutations from one temperature to the next, a power of two.
        hopeless_temperatures: a mutation that costs so many temperatures more is bound to be rejected, and is not made.

    Args, of a mutation (`sequence_moves.py`):
        prune_tries: computations looked at, after the first, for one that is a recomputation.
        gap_tries: values looked at, after the first, for one that is held over the peak and read after it.
        shift_positions: half of the shifts go no further than this; near ones are accepted more often.
        chain_bits: a chain has up to 2 ** chain_bits nodes, as far as there is room; short ones are likeliest.
        exchange_chains: chains after one removal, at most. More repairs more at once, and is refused more often.
    """

    order_share: float = 0.2
    patience_share: float = 0.25
    large_nodes: int = 2_000
    large_slots: int = 1 << 16
    first_iterations: int = 20_000
    turns: int = 10
    turn_iterations: int = 100_000
    max_fetches: int = 1 << 14

    descent_penalty: float = 300.0
    descent_cooling: float = 0.75
    descent_values: int = 3
    max_descent_temperature: float = 3.0

    max_slots: int = 1 << 20
    least_slots_bits: int = 6
    largest_doublings: int = 10
    drawn_values: int = 4096
    by_size_share: float = 0.5

    cooled_moves: int = 128
    hopeless_temperatures: int = 15

    prune_tries: int = 7
    gap_tries: int = 11
    shift_positions: int = 8
    chain_bits: int = 6
    exchange_chains: int = 3


SETTINGS = Settings()
