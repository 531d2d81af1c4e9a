"""Compiled moves of stage-space annealing.

The state is a set of events (t, v), "node v is recomputed in stage t, before node t", plus the n first
computations (t, t), which are the events 0 .. n-1. Events run by stage, within a stage by node. What is retained
follows, so every set of events is a valid schedule. `excess[e]` is the memory of event e above the budget, exactly
as `simulate` counts it; every change of the set updates the range of events that a retention interval gains or loses.

All integers are int64. `total` holds [cost, overflow, number of recomputations, journal length, closure length];
`rng` is the state of a splitmix64 generator.
"""

from typing import NamedTuple

import numba
import numpy as np

COST, OVERFLOW, NUM_EVENTS, JOURNAL, STACK = range(5)
MAX_CLOSURE = 256
_NEVER = np.iinfo(np.int64).max


class KernelGraph(NamedTuple):
    """A graph as flat arrays. `reuse` is the first output of an in-place node, else -1."""

    input_start: np.ndarray
    inputs: np.ndarray
    output_start: np.ndarray
    outputs: np.ndarray
    user_start: np.ndarray
    users: np.ndarray
    producer: np.ndarray
    size: np.ndarray
    cost: np.ndarray
    workspace: np.ndarray
    recomputable: np.ndarray
    reuse: np.ndarray
    is_output: np.ndarray
    candidates: np.ndarray
    candidate_count: np.ndarray


class KernelState(NamedTuple):
    """Events as linked lists: `head` and `following` by stage (the last is (t, t)), `later` and `earlier` by node."""

    node: np.ndarray
    stage: np.ndarray
    head: np.ndarray
    following: np.ndarray
    later: np.ndarray
    earlier: np.ndarray
    excess: np.ndarray
    dying: np.ndarray
    pool: np.ndarray
    slot: np.ndarray
    total: np.ndarray
    journal: np.ndarray
    rng: np.ndarray
    mark: np.ndarray
    price: np.ndarray
    closure: np.ndarray


@numba.njit(cache=True)
def _random(state):
    state.rng[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state.rng[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@numba.njit(cache=True)
def _below(state, limit):
    return np.int64(_random(state) % np.uint64(limit))


@numba.njit(cache=True)
def _uniform(state):
    return np.float64(_random(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@numba.njit(cache=True)
def _key(state, event):
    return state.stage[event] * state.head.shape[0] + state.node[event]


@numba.njit(cache=True)
def _bump(state, event, delta):
    before = state.excess[event]
    after = before + delta
    state.excess[event] = after
    state.total[OVERFLOW] += max(after, 0) - max(before, 0)


@numba.njit(cache=True)
def _range(state, first, stage, node, delta, commit):
    """Overflow that `delta` more adds to the events after `first` and before (stage, node); adds it when `commit`."""
    num_nodes = state.head.shape[0]
    excess = state.excess
    change = 0
    at = state.stage[first]
    event = first
    while True:
        if event < num_nodes:
            at += 1
            if at > stage:
                break
            event = state.head[at]
            while event == at and at < stage:
                before = excess[event]
                change += max(before + delta, 0) - max(before, 0)
                if commit:
                    excess[event] = before + delta
                at += 1
                event = state.head[at]
        else:
            event = state.following[event]
        if at == stage and state.node[event] >= node:
            break
        before = excess[event]
        change += max(before + delta, 0) - max(before, 0)
        if commit:
            excess[event] = before + delta
    if commit:
        state.total[OVERFLOW] += change
    return change


@numba.njit(cache=True)
def _add_range(state, first, last, delta):
    """Adds `delta` to the events after `first` up to and with `last`."""
    if first != last:
        _range(state, first, state.stage[last], state.node[last], delta, True)
        _bump(state, last, delta)


@numba.njit(cache=True)
def _copy_before(state, node, key):
    """The last event of `node` before `key`."""
    event = node
    while state.later[event] >= 0 and _key(state, state.later[event]) < key:
        event = state.later[event]
    return event


@numba.njit(cache=True)
def _last_use(graph, state, value, copy, before_key):
    """The last event after `copy` and before `before_key` that reads `value`; `copy` where there is none."""
    best = copy
    best_key = _key(state, copy)
    for position in range(graph.user_start[value], graph.user_start[value + 1]):
        event = graph.users[position]
        while event >= 0:
            key = _key(state, event)
            if key >= before_key:
                break
            if key > best_key:
                best, best_key = event, key
            event = state.later[event]
    return best


@numba.njit(cache=True)
def _copy_end(graph, state, value, copy):
    after = state.later[copy]
    if after < 0:
        if graph.is_output[value]:
            return state.head.shape[0] - 1
        return _last_use(graph, state, value, copy, _NEVER)
    return _last_use(graph, state, value, copy, _key(state, after))


@numba.njit(cache=True)
def _first_use(graph, state, value, after_key, before_key):
    """The first event between the keys that reads `value`, or -1."""
    best = -1
    best_key = before_key
    for position in range(graph.user_start[value], graph.user_start[value + 1]):
        event = graph.users[position]
        while event >= 0:
            key = _key(state, event)
            if key >= best_key:
                break
            if key > after_key:
                best, best_key = event, key
                break
            event = state.later[event]
    return best


@numba.njit(cache=True)
def _count_dying(graph, state, value, copy, end, delta):
    """Notes that the copy's interval now ends (delta 1) or no longer ends (-1) at an in-place event."""
    if end == copy:
        return
    reuse = graph.reuse[state.node[end]]
    if reuse < 0 or graph.size[reuse] != graph.size[value]:
        return
    if graph.is_output[value] and end == state.head.shape[0] - 1:
        return
    before = state.dying[end]
    state.dying[end] = before + delta
    if before == 0 and delta > 0:
        _bump(state, end, -graph.size[reuse])
    elif before == 1 and delta < 0:
        _bump(state, end, graph.size[reuse])


@numba.njit(cache=True)
def add_event(graph, state, stage, node):
    """Recomputes `node` in `stage`. Returns the event, or -1 when it exists or no room is left for events."""
    num_nodes = state.head.shape[0]
    key = stage * num_nodes + node
    previous = _copy_before(state, node, key)
    exists = state.later[previous] >= 0 and state.stage[state.later[previous]] == stage
    if exists or state.total[NUM_EVENTS] == state.pool.shape[0]:
        return -1
    event = state.pool[state.total[NUM_EVENTS]]
    state.node[event] = node
    state.stage[event] = stage
    state.dying[event] = 0
    after = state.head[stage]
    if after == stage or state.node[after] > node:
        state.head[stage] = event
    else:
        before = after
        after = state.following[before]
        while after != stage and state.node[after] < node:
            before = after
            after = state.following[before]
        state.following[before] = event
    state.following[event] = after
    follower = state.node[after]
    held = state.excess[after] - graph.workspace[follower] + graph.workspace[node]
    if state.dying[after] > 0:
        held += graph.size[graph.reuse[follower]]
    for position in range(graph.output_start[follower], graph.output_start[follower + 1]):
        held -= graph.size[graph.outputs[position]]
    state.excess[event] = held
    state.total[OVERFLOW] += max(held, 0)
    for position in range(graph.input_start[node], graph.input_start[node + 1]):
        value = graph.inputs[position]
        copy = _copy_before(state, graph.producer[value], key)
        end = _copy_end(graph, state, value, copy)
        if _key(state, end) < key:
            _count_dying(graph, state, value, copy, end, -1)
            _add_range(state, end, event, graph.size[value])
            _count_dying(graph, state, value, copy, event, 1)
    for position in range(graph.output_start[node], graph.output_start[node + 1]):
        value = graph.outputs[position]
        size = graph.size[value]
        if _key(state, _copy_end(graph, state, value, previous)) > key:
            end = _last_use(graph, state, value, previous, key)
            _add_range(state, end, event, -size)
            _count_dying(graph, state, value, previous, end, 1)
        _bump(state, event, size)
    after = state.later[previous]
    state.later[event] = after
    state.earlier[event] = previous
    state.later[previous] = event
    if after >= 0:
        state.earlier[after] = event
    state.total[COST] += graph.cost[node]
    state.total[NUM_EVENTS] += 1
    return event


@numba.njit(cache=True)
def remove_event(graph, state, event):
    """Takes a recomputation out of the set."""
    stage, node = state.stage[event], state.node[event]
    key = _key(state, event)
    previous, after = state.earlier[event], state.later[event]
    for position in range(graph.output_start[node], graph.output_start[node + 1]):
        value = graph.outputs[position]
        size = graph.size[value]
        if _copy_end(graph, state, value, event) != event:
            end = _last_use(graph, state, value, previous, key)
            _count_dying(graph, state, value, previous, end, -1)
            _add_range(state, end, event, size)
        _bump(state, event, -size)
    state.later[previous] = after
    if after >= 0:
        state.earlier[after] = previous
    for position in range(graph.input_start[node], graph.input_start[node + 1]):
        value = graph.inputs[position]
        copy = _copy_before(state, graph.producer[value], key)
        end = _copy_end(graph, state, value, copy)
        if _key(state, end) < key:
            _count_dying(graph, state, value, copy, event, -1)
            _add_range(state, end, event, -graph.size[value])
            _count_dying(graph, state, value, copy, end, 1)
    state.total[OVERFLOW] -= max(state.excess[event], 0)
    after = state.head[stage]
    if after == event:
        state.head[stage] = state.following[event]
    else:
        while state.following[after] != event:
            after = state.following[after]
        state.following[after] = state.following[event]
    state.total[COST] -= graph.cost[node]
    state.total[NUM_EVENTS] -= 1
    place, moved = state.slot[event], state.pool[state.total[NUM_EVENTS]]
    state.pool[place], state.slot[moved] = moved, place
    state.pool[state.total[NUM_EVENTS]], state.slot[event] = event, state.total[NUM_EVENTS]


@numba.njit(cache=True)
def _write(state, sign, stage, node):
    length = state.total[JOURNAL]
    state.journal[length, 0] = sign
    state.journal[length, 1] = stage
    state.journal[length, 2] = node
    state.total[JOURNAL] = length + 1


@numba.njit(cache=True)
def _find(state, stage, node):
    event = node
    while event >= 0 and state.stage[event] != stage:
        event = state.later[event]
    return event


@numba.njit(cache=True)
def _undo(graph, state):
    while state.total[JOURNAL] > 0:
        state.total[JOURNAL] -= 1
        sign, stage, node = state.journal[state.total[JOURNAL]]
        if sign > 0:
            remove_event(graph, state, _find(state, stage, node))
        else:
            add_event(graph, state, stage, node)


@numba.njit(cache=True)
def _useless(graph, state, event):
    """Nothing reads what this recomputation yields."""
    if event < state.head.shape[0]:
        return False
    node = state.node[event]
    for position in range(graph.output_start[node], graph.output_start[node + 1]):
        if _copy_end(graph, state, graph.outputs[position], event) != event:
            return False
    return True


@numba.njit(cache=True)
def _room(state):
    return state.total[JOURNAL] < state.journal.shape[0]


@numba.njit(cache=True)
def _remove_cascade(graph, state, event):
    """Removes a recomputation, then those that fed only it."""
    num_nodes = state.head.shape[0]
    stack = state.closure
    bottom = state.total[STACK]
    stack[bottom] = event
    depth = bottom + 1
    while depth > bottom:
        depth -= 1
        event = stack[depth]
        stage, node = state.stage[event], state.node[event]
        if state.slot[event] >= state.total[NUM_EVENTS] or not _room(state):
            continue
        remove_event(graph, state, event)
        _write(state, -1, stage, node)
        for position in range(graph.input_start[node], graph.input_start[node + 1]):
            copy = _copy_before(state, graph.producer[graph.inputs[position]], stage * num_nodes + node)
            if depth < stack.shape[0] and _useless(graph, state, copy):
                stack[depth] = copy
                depth += 1


@numba.njit(cache=True)
def _insert(graph, state, stage, node):
    """Adds one event; a former copy that nothing reads any longer goes."""
    event = add_event(graph, state, stage, node) if _room(state) else -1
    if event < 0:
        return False
    _write(state, 1, stage, node)
    previous = state.earlier[event]
    if _useless(graph, state, previous):
        _remove_cascade(graph, state, previous)
    return True


@numba.njit(cache=True)
def _hold_price(graph, state, stage, node, value, weight):
    """`weight` times the overflow that holding `value` until (stage, node) adds, or -1 where it is held anyway."""
    key = stage * state.head.shape[0] + node
    copy = _copy_before(state, graph.producer[value], key)
    end = _copy_end(graph, state, value, copy)
    if _key(state, end) >= key:
        return -1.0
    return weight * _range(state, end, stage, node, graph.size[value], False)


@numba.njit(cache=True)
def _choose_closure(graph, state, stage, node, weight):
    """Which nodes to recompute in `stage` so that `node` can be: each input is held longer or recomputed in turn.

    Prices are memoized by node: the cost of a recomputation plus, for each input, the lesser of `weight` times the
    overflow that holding it adds and the price of recomputing it. Writes the chosen nodes, ascending, into
    `state.closure` and returns their number.
    """
    found = state.closure
    found[0] = node
    state.mark[node] = 1
    count = 1
    position = 0
    while position < count:
        current = found[position]
        position += 1
        for index in range(graph.input_start[current], graph.input_start[current + 1]):
            producer = graph.producer[graph.inputs[index]]
            if state.mark[producer] > 0 or not graph.recomputable[producer] or count >= MAX_CLOSURE:
                continue
            if _hold_price(graph, state, stage, current, graph.inputs[index], weight) > graph.cost[producer]:
                state.mark[producer] = 1
                found[count] = producer
                count += 1
    ordered = np.sort(found[:count])
    for current in ordered:
        state.price[current] = graph.cost[current]
        for index in range(graph.input_start[current], graph.input_start[current + 1]):
            producer = graph.producer[graph.inputs[index]]
            hold = max(_hold_price(graph, state, stage, current, graph.inputs[index], weight), 0.0)
            state.price[current] += min(hold, state.price[producer]) if state.mark[producer] > 0 else hold
    state.mark[node] = 2
    chosen = 0
    for position in range(count - 1, -1, -1):
        current = ordered[position]
        if state.mark[current] < 2:
            continue
        found[chosen] = current
        chosen += 1
        for index in range(graph.input_start[current], graph.input_start[current + 1]):
            producer = graph.producer[graph.inputs[index]]
            if state.mark[producer] == 1:
                hold = _hold_price(graph, state, stage, current, graph.inputs[index], weight)
                if hold > state.price[producer]:
                    state.mark[producer] = 2
    for current in ordered:
        state.mark[current] = 0
    return chosen


@numba.njit(cache=True)
def _recompute(graph, state, stage, node, weight, hole_start, hole_bytes):
    """Adds (stage, node) and what it needs, priced with `hole_bytes` less held between `hole_start` and it."""
    if hole_bytes > 0:
        _range(state, hole_start, stage, node, -hole_bytes, True)
    chosen = _choose_closure(graph, state, stage, node, weight)
    if hole_bytes > 0:
        _range(state, hole_start, stage, node, hole_bytes, True)
    state.total[STACK] = chosen
    added = False
    for position in range(chosen - 1, -1, -1):
        added = _insert(graph, state, stage, state.closure[position])
    state.total[STACK] = 0
    return added


@numba.njit(cache=True)
def _overloaded(state):
    """An event above the budget, the first from a random stage on."""
    num_nodes = state.head.shape[0]
    stage = _below(state, num_nodes)
    for _ in range(num_nodes):
        event = state.head[stage]
        while event != stage and state.excess[event] <= 0:
            event = state.following[event]
        if state.excess[event] > 0:
            return event
        stage = stage + 1 if stage + 1 < num_nodes else 0
    return np.int64(-1)


@numba.njit(cache=True)
def _evict(graph, state, event, weight):
    """Drops a random value that is only carried across `event`, and recomputes it where it is next read."""
    num_nodes = state.head.shape[0]
    count = graph.candidate_count[state.stage[event]]
    key = _key(state, event)
    for _ in range(40 if count > 0 else 0):
        value = graph.candidates[_below(state, count)]
        node = graph.producer[value]
        copy = _copy_before(state, node, key)
        if copy == event:
            continue
        after = state.later[copy]
        limit = _NEVER if after < 0 else _key(state, after)
        use = _first_use(graph, state, value, key - 1, limit)
        if use == event:
            continue
        if use < 0:
            if not graph.is_output[value] or after >= 0:
                continue
            use = num_nodes - 1
        stage = state.stage[use]
        if stage * num_nodes + node <= key or state.stage[copy] == stage or node == stage:
            continue
        end = _last_use(graph, state, value, copy, key)
        hole = graph.size[value] if _uniform(state) < 0.9 else 0
        return _recompute(graph, state, stage, node, weight, end, hole)
    return False


@numba.njit(cache=True)
def _random_event(state):
    return state.pool[_below(state, state.total[NUM_EVENTS])]


@numba.njit(cache=True)
def _shift(graph, state, weight):
    """Moves a recomputation to another stage between the former copy and the next."""
    event = _random_event(state)
    stage, node = state.stage[event], state.node[event]
    low = state.stage[state.earlier[event]] + 1
    after = state.later[event]
    high = state.head.shape[0] - 1 if after < 0 else state.stage[after] - 1
    if high <= low:
        return False
    reach = np.int64(1) << _below(state, 8)
    target = min(max(stage + _below(state, 2 * reach + 1) - reach, low), high)
    if target == stage:
        return False
    _remove_cascade(graph, state, event)
    return _recompute(graph, state, target, node, weight, node, 0)


@numba.njit(cache=True)
def _move(graph, state, weight):
    """One random move, written to the journal. Returns whether it changed anything."""
    overflow = state.total[OVERFLOW]
    choice = _uniform(state)
    if overflow > 0 and (choice < 0.55 or state.total[NUM_EVENTS] == 0):
        return _evict(graph, state, _overloaded(state), weight)
    if state.total[NUM_EVENTS] == 0:
        return False
    if choice < 0.75:
        _remove_cascade(graph, state, _random_event(state))
        if choice < 0.65:
            return True
        for _ in range(1 + _below(state, 4)):
            if state.total[OVERFLOW] <= overflow:
                break
            _evict(graph, state, _overloaded(state), weight)
        return True
    return _shift(graph, state, weight)


@numba.njit(cache=True)
def anneal(graph, state, best, weights, num_moves, hot, cold):
    """`num_moves` moves at temperatures from `hot` down to `cold`, in units of cost.

    Args:
        best: int64 [1 + capacity, 2]; row 0 holds the least cost within the budget (-1 for none) and the number of
            events of that set, which the rows after it name by (stage, node). Improved in place.
        weights: float64 [3], the price of a byte of overflow at an event, the least and the most it may become.
            The price is adapted so that a third of the states keep within the budget.
    """
    within = 0
    ratio = (cold / hot) ** (1.0 / max(num_moves, 1))
    temperature = hot
    for move in range(num_moves):
        temperature *= ratio
        cost, overflow = state.total[COST], state.total[OVERFLOW]
        state.total[JOURNAL] = 0
        changed = _move(graph, state, weights[0])
        worse = (state.total[COST] - cost) + weights[0] * (state.total[OVERFLOW] - overflow)
        if not changed or (worse > 0 and _uniform(state) >= np.exp(-worse / temperature)):
            _undo(graph, state)
        elif state.total[OVERFLOW] == 0 and (best[0, 0] < 0 or state.total[COST] < best[0, 0]):
            save(state, best)
        within += state.total[OVERFLOW] == 0
        if move % 256 == 255:
            if within < 64:
                weights[0] = min(weights[0] * 1.1, weights[2])
            elif within > 96:
                weights[0] = max(weights[0] / 1.1, weights[1])
            within = 0


@numba.njit(cache=True)
def save(state, best):
    """Writes the set of events to `best`."""
    count = min(state.total[NUM_EVENTS], best.shape[0] - 1)
    best[0, 0] = state.total[COST]
    best[0, 1] = count
    for position in range(count):
        event = state.pool[position]
        best[1 + position, 0] = state.stage[event]
        best[1 + position, 1] = state.node[event]


@numba.njit(cache=True)
def load(graph, state, events):
    """Makes `events`, int64 [num_events, 2] of (stage, node), the set."""
    while state.total[NUM_EVENTS] > 0:
        remove_event(graph, state, state.pool[0])
    for position in range(events.shape[0]):
        add_event(graph, state, events[position, 0], events[position, 1])


@numba.njit(cache=True)
def prune(graph, state, nodes_by_cost):
    """Removes every recomputation that the budget does not need, those of costly nodes first."""
    for node in nodes_by_cost:
        event = state.later[node]
        while event >= 0:
            after = state.later[event]
            state.total[JOURNAL] = 0
            overflow = state.total[OVERFLOW]
            _remove_cascade(graph, state, event)
            if state.total[OVERFLOW] > overflow:
                _undo(graph, state)
                after = -1 if after < 0 else _find(state, state.stage[after], node)
            elif after >= 0 and state.slot[after] >= state.total[NUM_EVENTS]:
                after = -1
            event = after
