"""Makes the moves of stage-space annealing, and anneals with them. All functions are compiled.

A move drops a value at an event above the budget and recomputes it at its next use, removes a recomputation together
with those that fed only it, removes one and drops other values, or shifts one to another stage. Moves are written to a
journal, from which a refused move is undone.
"""

import numpy as np
from numba import boolean, float64, int64, uint64, void

from checkmate_tf.solvers.annealing.settings import SETTINGS
from checkmate_tf.solvers.annealing.stage_copies import (
    add_event,
    copy_before,
    copy_end,
    find,
    first_use,
    insert,
    last_use,
    remove_cascade,
    remove_event,
    undo,
)
from checkmate_tf.solvers.annealing.stage_memory import (
    FLOATS,
    GRAPH,
    INTS,
    STATE,
    TABLE,
    change_chunk,
    change_range,
    compiled,
    entry,
    excess_of,
    key_of,
)
from checkmate_tf.solvers.annealing.stage_tables import (
    CANDIDATES,
    CHUNK_STAGES,
    COST,
    EARLIER,
    FIRST_INPUT,
    FOLLOWING,
    HIGH,
    IS_OUTPUT,
    JOURNAL,
    LATER,
    LAZY,
    MARK,
    MAX_CLOSURE,
    MOVES,
    NEVER,
    NO_LIMIT,
    NODE,
    NODE_COST,
    NUM_EVENTS,
    OVERFLOW,
    POOL,
    PRODUCER,
    RECOMPUTABLE,
    RNG,
    SIZE,
    SLOT,
    STACK,
    STAGE,
    WITHIN,
)

# Numba treats numbers of a module as constants, but cannot read the fields of an object.
_PRUNED_SHARE = SETTINGS.pruned_share
_EARLY_SHARE = SETTINGS.early_share
_RELIEF_END = SETTINGS.relief_end
_DROP_END = SETTINGS.drop_end
_REMOVAL_END = SETTINGS.removal_end
_EXCHANGE_END = SETTINGS.exchange_end
_SHIFT_END = SETTINGS.shift_end
_WITHIN_BUDGET_START = SETTINGS.within_budget_start
_DROP_TRIES = SETTINGS.drop_tries
_FAR_BITS = SETTINGS.far_bits
_EXCHANGE_BITS = SETTINGS.exchange_bits
_PRICED_MOVES = SETTINGS.priced_moves
_LEAST_WITHIN_MOVES = SETTINGS.least_within_moves
_MOST_WITHIN_MOVES = SETTINGS.most_within_moves
_LEAST_PRICE_NOISE = SETTINGS.least_price_noise


@compiled(uint64(STATE))
def _random(state):
    z = np.uint64(state.total[RNG]) + np.uint64(0x9E3779B97F4A7C15)
    state.total[RNG] = np.int64(z)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled(int64(STATE, int64))
def _below(state, limit):
    return np.int64(_random(state) % np.uint64(limit))


@compiled(float64(STATE))
def _uniform(state):
    return np.float64(_random(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled(void(INTS, int64))
def _sort(items, count):
    """Sorts the first `count` items in ascending order."""
    for position in range(1, count):
        item = items[position]
        place = position
        while place > 0 and items[place - 1] > item:
            items[place] = items[place - 1]
            place -= 1
        items[place] = item


@compiled(float64(GRAPH, STATE, int64, int64, int64, float64, float64))
def _hold_price(graph, state, stage, node, value, weight, limit):
    """Returns `weight` times the overflow that holding `value` until (stage, node) adds.

    The computation stops once the price exceeds `limit`.
    """
    key = stage * state.head.shape[0] + node
    copy = copy_before(state, graph.values[value, PRODUCER], key)
    end = copy_end(graph, state, value, copy)
    if key_of(state, end) >= key:
        return 0.0
    return weight * change_range(
        state, end, stage, node, graph.values[value, SIZE], min(limit / weight, NO_LIMIT), False
    )


@compiled(int64(GRAPH, STATE, int64, int64, float64, float64))
def _find_candidates(graph, state, stage, node, weight, limit):
    """Finds the nodes that may be worth recomputing in `stage` so that `node` can be recomputed there.

    Writes `node` and these nodes into `state.closure`, in ascending order, and returns their number; 0 if `node` costs
    more than `limit`. The nodes are marked, and `node` is marked as chosen. Prices of holding their inputs are written
    if they are known, else -1.
    """
    found, price = state.closure, state.price
    inputs = state.head.shape[0]
    price[node] = graph.nodes[node, NODE_COST]
    if price[node] > limit:
        return 0
    found[0] = node
    state.events[node, MARK] = 2
    count = 1
    position = 0
    while position < count:
        current = found[position]
        position += 1
        for index in range(graph.nodes[current, FIRST_INPUT], graph.nodes[current + 1, FIRST_INPUT]):
            producer = graph.values[graph.items[index], PRODUCER]
            price[inputs + index] = -1.0
            if state.events[producer, MARK] > 0 or not graph.nodes[producer, RECOMPUTABLE] or count >= MAX_CLOSURE:
                continue
            cost = np.float64(graph.nodes[producer, NODE_COST])
            if price[current] + cost > limit:
                continue
            hold = _hold_price(graph, state, stage, current, graph.items[index], weight, cost)
            if hold > cost:
                state.events[producer, MARK] = 1
                price[producer] = price[current] + cost
                found[count] = producer
                count += 1
            else:
                price[inputs + index] = hold
    _sort(found, count)
    return count


@compiled(void(GRAPH, STATE, int64, float64, float64, int64))
def _price_candidates(graph, state, stage, weight, limit, count):
    """Computes the price of recomputing each of the first `count` nodes of `state.closure`, including their inputs."""
    found, price = state.closure, state.price
    inputs = state.head.shape[0]
    for position in range(count):
        current = found[position]
        price[current] = 0.0
        for index in range(graph.nodes[current, FIRST_INPUT], graph.nodes[current + 1, FIRST_INPUT]):
            producer = graph.values[graph.items[index], PRODUCER]
            again = price[producer] if state.events[producer, MARK] > 0 else limit
            if price[inputs + index] < 0:
                price[inputs + index] = _hold_price(graph, state, stage, current, graph.items[index], weight, again)
            price[current] += min(price[inputs + index], again)
        price[current] = (price[current] + graph.nodes[current, NODE_COST]) * (_LEAST_PRICE_NOISE + _uniform(state))


@compiled(int64(GRAPH, STATE, int64, int64, float64, float64))
def _choose_closure(graph, state, stage, node, weight, limit):
    """Chooses the nodes to recompute in `stage` so that `node` can be: each input is held longer or recomputed in turn.

    Prices are memoized by node: the cost of a recomputation plus, for each input, the lesser of two prices, that of
    holding it (`weight` times the overflow that this adds) and that of recomputing it. A node is not considered if it
    and the nodes that want it cost more than `limit`. Writes the chosen nodes into `state.closure`, in ascending order,
    and returns their number.
    """
    found, price = state.closure, state.price
    inputs = state.head.shape[0]
    count = _find_candidates(graph, state, stage, node, weight, limit)
    _price_candidates(graph, state, stage, weight, limit, count)
    chosen = 0
    for position in range(count - 1, -1, -1):
        current = found[position]
        if state.events[current, MARK] < 2:
            continue
        chosen += 1
        found[2 * MAX_CLOSURE - chosen] = current
        for index in range(graph.nodes[current, FIRST_INPUT], graph.nodes[current + 1, FIRST_INPUT]):
            producer = graph.values[graph.items[index], PRODUCER]
            if state.events[producer, MARK] == 1 and price[inputs + index] > price[producer]:
                state.events[producer, MARK] = 2
    for position in range(count):
        state.events[found[position], MARK] = 0
    for position in range(chosen):
        found[position] = found[2 * MAX_CLOSURE - chosen + position]
    return chosen


@compiled(boolean(GRAPH, STATE, int64, int64, float64, float64, float64, int64, int64))
def _recompute(graph, state, stage, node, weight, limit, most, hole_start, hole_bytes):
    """Adds (stage, node) and the recomputations that it needs.

    Prices assume that `hole_bytes` less are held between `hole_start` and the new event. Nothing is added if the price
    exceeds `limit` plus the worth of this hole, or if the total exceeds `most`.
    """
    if hole_bytes > 0:
        limit -= weight * change_range(state, hole_start, stage, node, -hole_bytes, NO_LIMIT, True)
    chosen = _choose_closure(graph, state, stage, node, weight, min(limit, most - state.total[COST]))
    if hole_bytes > 0:
        change_range(state, hole_start, stage, node, hole_bytes, NO_LIMIT, True)
    state.total[STACK] = chosen
    added = False
    for position in range(chosen):
        added = insert(graph, state, stage, state.closure[position])
    state.total[STACK] = 0
    return added


@compiled(int64(STATE))
def _overloaded(state):
    """Returns an event above the budget, the first from a random stage on. At least one must exist."""
    num_nodes = state.head.shape[0]
    stage = _below(state, num_nodes)
    while True:
        chunk = stage // CHUNK_STAGES
        end = min((chunk + 1) * CHUNK_STAGES, num_nodes)
        if state.chunks[chunk, HIGH] + state.chunks[chunk, LAZY] > 0:
            change_chunk(state, chunk, 0, False)
            for at in range(stage, end):
                event = state.head[at]
                while event != at and excess_of(state, event) <= 0:
                    event = state.events[event, FOLLOWING]
                if excess_of(state, event) > 0:
                    return event
        stage = end if end < num_nodes else 0


@compiled(boolean(GRAPH, STATE, int64, float64, float64, float64))
def _evict(graph, state, event, weight, limit, most):
    """Drops a random value that is only carried across `event`, and recomputes it at its next use.

    Some are recomputed earlier than that, where there may be more room for their inputs.
    """
    num_nodes = state.head.shape[0]
    count = graph.nodes[state.events[event, STAGE], CANDIDATES]
    key = key_of(state, event)
    for _ in range(_DROP_TRIES if count > 0 else 0):
        value = graph.items[_below(state, count)]
        node = graph.values[value, PRODUCER]
        copy = copy_before(state, node, key)
        if copy == event:
            continue
        after = state.events[copy, LATER]
        use = first_use(graph, state, value, key - 1, NEVER if after < 0 else key_of(state, after))
        if use == event:
            continue
        if use < 0:
            if not graph.values[value, IS_OUTPUT] or after >= 0:
                continue
            use = num_nodes - 1
        stage = state.events[use, STAGE]
        if stage * num_nodes + node <= key or state.events[copy, STAGE] == stage or node == stage:
            continue
        first = max(state.events[event, STAGE], node) + 1
        if first < stage and _uniform(state) < _EARLY_SHARE:
            stage = max(stage - _below(state, np.int64(1) << _below(state, _FAR_BITS)), first)
        end = last_use(graph, state, value, copy, key)
        return _recompute(graph, state, stage, node, weight, limit, most, end, graph.values[value, SIZE])
    return False


@compiled(int64(STATE))
def _random_event(state):
    return state.events[_below(state, state.total[NUM_EVENTS]), POOL]


@compiled(boolean(GRAPH, STATE, float64, float64))
def _shift(graph, state, weight, most):
    """Moves a recomputation to another stage between the previous copy and the next."""
    event = _random_event(state)
    stage, node = state.events[event, STAGE], state.events[event, NODE]
    low = state.events[state.events[event, EARLIER], STAGE] + 1
    after = state.events[event, LATER]
    high = state.head.shape[0] - 1 if after < 0 else state.events[after, STAGE] - 1
    if high <= low:
        return False
    reach = np.int64(1) << _below(state, _FAR_BITS)
    target = min(max(stage + _below(state, 2 * reach + 1) - reach, low), high)
    if target == stage:
        return False
    remove_cascade(graph, state, event)
    return _recompute(graph, state, target, node, weight, NO_LIMIT, most, node, 0)


@compiled(boolean(GRAPH, STATE, float64, float64))
def _move(graph, state, weight, limit):
    """Makes one random move, writes it to the journal, and returns whether it changed anything.

    Args:
        limit: largest rise of the energy. Most moves try no recomputation that costs more.
    """
    overflow = state.total[OVERFLOW]
    limit = limit if _uniform(state) < _PRUNED_SHARE else NO_LIMIT
    most = limit + state.total[COST] + weight * overflow
    choice = _uniform(state)
    if overflow == 0:
        choice += _WITHIN_BUDGET_START
    if choice < _RELIEF_END or state.total[NUM_EVENTS] == 0:
        return overflow > 0 and _evict(graph, state, _overloaded(state), weight, limit, most)
    if choice < _DROP_END:
        return _evict(graph, state, _below(state, state.head.shape[0]), weight, limit, most)
    if choice < _REMOVAL_END or choice >= _SHIFT_END:
        remove_cascade(graph, state, _random_event(state))
        return True
    if choice >= _EXCHANGE_END:
        return _shift(graph, state, weight, most)
    remove_cascade(graph, state, _random_event(state))
    for _ in range(np.int64(1) << _below(state, _EXCHANGE_BITS)):
        if state.total[OVERFLOW] <= overflow or state.total[COST] > most:
            break
        _evict(graph, state, _overloaded(state), weight, limit, most)
    return True


@entry(void(STATE, TABLE))
def save(state, best):
    """Writes the set of events to `best`."""
    count = min(state.total[NUM_EVENTS], best.shape[0] - 1)
    best[0, 0] = state.total[COST]
    best[0, 1] = count
    for position in range(count):
        event = state.events[position, POOL]
        best[1 + position, 0] = state.events[event, STAGE]
        best[1 + position, 1] = state.events[event, NODE]


@entry(void(GRAPH, STATE, TABLE, FLOATS, int64, float64, float64))
def anneal_stages(graph, state, best, weights, num_moves, hot, cold):
    """Makes `num_moves` moves at temperatures from `hot` down to `cold`, in units of cost.

    Args:
        best: int64 [1 + capacity, 2], updated in place. Row 0 holds the least cost within the budget (-1 for none) and
            the number of events of that set. The rows after it are these events (stage, node).
        weights: float64 [4]: the price of a byte of overflow at an event, its lower and upper limit, and the factor by
            which one adaptation changes it. The price adapts so that a third of the states stay within the budget.
    """
    ratio = (cold / hot) ** (1.0 / max(num_moves, 1))
    temperature = hot
    for _ in range(num_moves):
        temperature *= ratio
        cost, overflow = state.total[COST], state.total[OVERFLOW]
        state.total[JOURNAL] = 0
        limit = -temperature * np.log(1.0 - _uniform(state))
        changed = _move(graph, state, weights[0], limit)
        worse = (state.total[COST] - cost) + weights[0] * (state.total[OVERFLOW] - overflow)
        if not changed or worse > limit:
            undo(graph, state)
        elif state.total[OVERFLOW] == 0 and (best[0, 0] < 0 or state.total[COST] < best[0, 0]):
            save(state, best)
        state.total[WITHIN] += state.total[OVERFLOW] == 0
        state.total[MOVES] += 1
        if state.total[MOVES] == _PRICED_MOVES:
            within = state.total[WITHIN]
            if within < _LEAST_WITHIN_MOVES:
                weights[0] = min(weights[0] * weights[3], weights[2])
            elif within > _MOST_WITHIN_MOVES:
                weights[0] = max(weights[0] / weights[3], weights[1])
            state.total[MOVES] = state.total[WITHIN] = 0


@entry(void(GRAPH, STATE, TABLE))
def load(graph, state, events):
    """Replaces the set by `events`, int64 [num_events, 2] of (stage, node)."""
    while state.total[NUM_EVENTS] > 0:
        remove_event(graph, state, state.events[0, POOL])
    for position in range(events.shape[0]):
        add_event(graph, state, events[position, 0], events[position, 1])


@entry(void(GRAPH, STATE, INTS))
def remove_unneeded(graph, state, nodes):
    """Removes every recomputation that the budget does not need, in the order of `nodes`."""
    for node in nodes:
        event = state.events[node, LATER]
        while event >= 0:
            after = state.events[event, LATER]
            state.total[JOURNAL] = 0
            overflow = state.total[OVERFLOW]
            remove_cascade(graph, state, event)
            if state.total[OVERFLOW] > overflow:
                undo(graph, state)
                after = -1 if after < 0 else find(state, state.events[after, STAGE], node)
            elif after >= 0 and state.events[after, SLOT] >= state.total[NUM_EVENTS]:
                after = -1
            event = after
