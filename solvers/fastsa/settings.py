"""The numbers that steer FastSA besides its options, and the trade-off behind each.

The compiled moves read them when they are compiled, and Numba does not notice a change of this file: after a change,
delete `__pycache__` beside it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Steers the annealing of sequences.

    Args, of the whole search (`solver.py`):
        order_share: share of the time limit for finding an order of less peak to begin with. More leaves less for
            annealing.
        patience_share: share of the remaining time. If an annealing is still above the budget after it, a descent
            follows. Less gives up on budgets that the annealing would still meet.
        large_nodes: a graph with more nodes counts as large. Its first round is short, to estimate how many mutations
            fit into the time.
        large_slots: the same for a sequence with more slots.
        first_iterations: mutations of that first round.
        turns: least number of turns of a round; the clock is checked after each. More end closer to the deadline.
        turn_iterations: largest number of mutations in a turn.
        max_fetches: largest number of fetches of a schedule that can be kept as the best.

    Args, of the descent, which begins hot and with a high penalty if no annealing met the budget:
        descent_penalty: penalty per budget's worth of excess, relative to the cost of computing every node once.
        descent_cooling: while the budget is not met, a round ends at this share of its first temperature or above.
        descent_values: at first, about this many values of mean size more or less do not matter.
        max_descent_temperature: relative to the cost of computing every node once. A hotter descent would fill the
            sequences of small graphs at random.

    Args, of a sequence:
        max_slots: length of the paper's sequences (appendix D.4). A sequence is longer only if its positions need it.
        least_slots_bits: a sequence has at least 2 to this power slots.
        largest_doublings: with LogAddExp, how often the largest value doubles a weight. More comes closer to the
            maximum; less leaves a steeper slope to follow.
        drawn_values: number of values drawn before the annealing, from which chains take theirs. More follows the
            intended chances closer.
        by_size_share: share of these that is drawn in proportion to size; the others are drawn uniformly.

    Args, of the loop (`kernel.py`):
        cooled_moves: mutations from one temperature to the next, a power of two.
        hopeless_temperatures: a mutation that raises the energy by more than this many temperatures would almost
            certainly be rejected, so it is not made.

    Args, of a mutation (`sequence_moves.py`):
        prune_tries: further computations examined to find one that is a recomputation.
        gap_tries: further values examined to find one that is held over the peak and read after it.
        shift_positions: half of the shifts go no further than this, because near ones are accepted more often.
        chain_bits: a chain has up to 2 ** chain_bits nodes, if there is room; short ones are the most likely.
        exchange_chains: largest number of chains after one removal. More repairs more at once, and is refused more
            often.
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
