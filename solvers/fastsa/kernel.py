"""FastSA's annealing loop (section 2.2, appendix D.4), compiled."""

from math import exp, log, log2

from numba import float64, int64, types, void

from checkmate_tf.solvers.fastsa.sequence_arrays import (
    COST,
    EVENTS,
    FETCH,
    FETCHES,
    JOURNAL_LENGTH,
    LENGTH,
    LIST,
    MOST_COST,
    NODE,
    NUM_VALUES,
    SINGLE,
    STATE,
    TABLE,
    compiled,
    deltas,
    event_list,
    slot_table,
    totals,
    transfers,
    value_table,
    weights,
)
from checkmate_tf.solvers.fastsa.sequence_events import undo
from checkmate_tf.solvers.fastsa.sequence_moves import (
    add_chain,
    add_random,
    below,
    exchange,
    flip_random,
    prune,
    remove_random,
    rotate_random,
    shift,
)
from checkmate_tf.solvers.fastsa.settings import SETTINGS

_COOLED_MASK = SETTINGS.cooled_moves - 1
_HOPELESS_TEMPERATURES = SETTINGS.hopeless_temperatures

# Entries of `settings`, float64. Objectives: 0 product (equation 1), 1 Elu (footnote 2), 2 penalty.
OBJECTIVE, BUDGET, BASELINE, PENALTY, FIRST_TEMPERATURE, LAST_TEMPERATURE, SOFT_UNITS, STOP_AT_BUDGET = range(8)
# Entries of `best` figures and counts, int64.
BEST_PEAK, BEST_COST, BEST_FETCHES, TRIED, VALID, ACCEPTED, SINGLES = range(7)
UNKNOWN = 2**62  # more than any peak or cost
MOVE_NAMES = ("add", "remove", "rotate", "flip", "chain", "prune", "shift", "exchange")
FLOATS = types.Array(types.float64, 1, "C")
LONG = types.Array(types.int64, 1, "C")


@compiled(float64, STATE, FLOATS)
def energy(state, settings):
    """Returns the objective, relative to the budget and the cost of computing every node once.

    0: max(budget, M) C. 1: L(Elu(L^-1(M))) C^0.6 with L(0) = budget and L(-100) = 0, so that less memory still counts
    just below the budget. 2: C plus a penalty for each budget's worth of excess.
    """
    peak = float64(deltas(state)[1])
    if settings[SOFT_UNITS] > 0:
        peak = log2(weights(state)[0, 1]) * settings[SOFT_UNITS]
    excess = peak / settings[BUDGET] - 1
    cost = totals(state)[COST] / settings[BASELINE]
    if settings[OBJECTIVE] == 0:
        return (1 + max(0.0, excess)) * cost
    if settings[OBJECTIVE] == 1:
        return (1 + (excess if excess > 0 else (exp(100 * excess) - 1) / 100)) * cost**0.6
    return cost + settings[PENALTY] * max(0.0, excess)


@compiled(int64, float64, FLOATS)
def _most_cost(most_energy, settings):
    """Returns a cost above which the energy of a sequence exceeds the given one, however little memory it takes.

    The Elu objective's factor for memory is never below 0.99.
    """
    relative = (most_energy / 0.99) ** (1 / 0.6) if settings[OBJECTIVE] == 1 else most_energy
    return int64(relative * settings[BASELINE]) + 1


@compiled(void, STATE, int64, LIST, TABLE, LONG)
def _keep_best(state, budget, best_nodes, best_fetches, figures):
    peak = deltas(state)[1]
    cost = totals(state)[COST]
    if figures[BEST_PEAK] <= budget:
        if peak > budget or cost >= figures[BEST_COST]:
            return
    elif peak > budget and peak >= figures[BEST_PEAK]:
        return
    fetches = 0
    for value in range(totals(state)[NUM_VALUES]):
        if transfers(state)[value, FETCHES] > 0:
            fetches += transfers(state)[value, FETCHES]
    if fetches > len(best_fetches):
        return
    figures[BEST_PEAK] = peak
    figures[BEST_COST] = cost
    figures[BEST_FETCHES] = fetches
    for slot in range(len(best_nodes)):
        best_nodes[slot] = slot_table(state)[slot, NODE]
    if fetches == 0:
        return
    filled = 0
    for value in range(totals(state)[NUM_VALUES]):
        start = value_table(state)[value, EVENTS]
        for place in range(start, start + value_table(state)[value, LENGTH]):
            if event_list(state)[place] & 3 == FETCH:
                best_fetches[filled, 0] = event_list(state)[place] >> 2
                best_fetches[filled, 1] = value
                filled += 1


@compiled(types.boolean, STATE, int64, LIST, int64)
def mutate(state, kind, likely, budget):
    """Makes one mutation, given by its index in `shares`, and returns whether it changed anything."""
    if kind == 0:
        return add_random(state)
    if kind == 1:
        return remove_random(state)
    if kind == 2:
        return rotate_random(state)
    if kind == 3:
        return flip_random(state)
    if kind == 4:
        return add_chain(state, likely, 1 if deltas(state)[1] > budget or below(state, 2) == 0 else 0)
    if kind == 5:
        return prune(state)
    if kind == 6:
        return shift(state)
    return exchange(state, likely, budget)


@compiled(void, STATE, FLOATS, LONG, LIST, int64, int64, LIST, TABLE, LONG, entry=True)
def anneal(state, settings, shares, likely, iterations, budget, best_nodes, best_fetches, figures):
    """Tries `iterations` mutations and accepts them by Metropolis' rule.

    `shares`, [8], are the chances of the mutations in the order of MOVE_NAMES. The best sequence is written to
    `best_nodes` [num_slots] and `best_fetches` [room, 2]: the cheapest one within the budget or, until there is one,
    the one of least peak. `figures` carries its peak and cost from call to call, and counts the mutations that were
    tried, valid and accepted, and the single nodes (or fetches) that they tried. With STOP_AT_BUDGET, the loop ends as
    soon as a sequence is within the budget.
    """
    current = energy(state, settings)
    cooling = log(settings[LAST_TEMPERATURE] / settings[FIRST_TEMPERATURE])
    temperature = settings[FIRST_TEMPERATURE]
    total = shares.sum()
    _keep_best(state, budget, best_nodes, best_fetches, figures)
    for iteration in range(iterations):
        if settings[STOP_AT_BUDGET] > 0 and figures[BEST_PEAK] <= budget:
            return
        if iteration & _COOLED_MASK == 0:
            temperature = settings[FIRST_TEMPERATURE] * exp(cooling * iteration / iterations)
            totals(state)[MOST_COST] = _most_cost(current + _HOPELESS_TEMPERATURES * temperature, settings)
            if deltas(state)[1] > budget and figures[BEST_PEAK] > budget:
                _keep_best(state, budget, best_nodes, best_fetches, figures)
        draw = below(state, total)
        kind = 0
        while draw >= shares[kind]:
            draw -= shares[kind]
            kind += 1
        totals(state)[JOURNAL_LENGTH] = 0
        figures[TRIED] += 1
        single = totals(state)[SINGLE]
        changed = mutate(state, kind, likely, budget)
        figures[SINGLES] += max(1, totals(state)[SINGLE] - single)
        if not changed:
            continue
        figures[VALID] += 1
        proposed = energy(state, settings)
        if proposed > current and below(state, 1 << 30) >= exp((current - proposed) / temperature) * (1 << 30):
            undo(state)
            continue
        figures[ACCEPTED] += 1
        current = proposed
        if deltas(state)[1] <= budget:
            _keep_best(state, budget, best_nodes, best_fetches, figures)
    _keep_best(state, budget, best_nodes, best_fetches, figures)
