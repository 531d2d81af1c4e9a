"""Compiled moves of stage-space annealing.

The state is a set of events (t, v), "node v is recomputed in stage t, before node t", plus the n first
computations (t, t), which are the events 0 .. n-1. Events run by stage, within a stage by node. What is retained
follows, so every set of events is a valid schedule. `excess[e]` is the memory of event e above the budget, exactly
as `simulate` counts it; every change of the set updates the range of events that a retention interval gains or loses.

Tables with named columns rather than an array a field: the time to compile grows with the arrays handed around.
"""

from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np
from numba import boolean, float64, int64, types, uint64, void

# Columns of KernelGraph.nodes. Lists run from their FIRST_ column to that of the next row. REUSE is the first output
# of an in-place node, else -1; the first CANDIDATES items are the values worth dropping that earlier nodes compute.
FIRST_INPUT, FIRST_OUTPUT, NODE_COST, WORKSPACE, RECOMPUTABLE, REUSE, CANDIDATES = range(7)
# Columns of KernelGraph.values.
FIRST_USER, PRODUCER, SIZE, IS_OUTPUT = range(4)
# Columns of KernelState.events. FOLLOWING links the recomputations of a stage, the last to (t, t); LATER and EARLIER
# the events of a node. DYING counts the inputs whose storage an in-place node can take over. Row k of POOL holds an
# event: one in the set for k < NUM_EVENTS, else a free one; SLOT is its row. MARK is a node's, for `_choose_closure`.
NODE, STAGE, FOLLOWING, LATER, EARLIER, DYING, POOL, SLOT, MARK = range(9)
# Entries of KernelState.total.
COST, OVERFLOW, NUM_EVENTS, JOURNAL, STACK, RNG = range(6)
MAX_CLOSURE = 128
_DEAR = 1e18
_NEVER = np.iinfo(np.int64).max


class KernelGraph(NamedTuple):
    """int64 tables: nodes [num_nodes + 1, 7], values [num_values + 1, 4], and the items of all lists."""

    nodes: np.ndarray
    values: np.ndarray
    items: np.ndarray


class KernelState(NamedTuple):
    """events int64 [num_nodes + room, 9]; `head`, the first event of each stage; `excess` of each event, bytes.

    `journal` [any, 3] of (sign, stage, node) undoes a move; `price` and `closure` are scratch.
    """

    events: np.ndarray
    head: np.ndarray
    excess: np.ndarray
    total: np.ndarray
    journal: np.ndarray
    price: np.ndarray
    closure: np.ndarray


_INTS, _TABLE, _FLOATS = int64[::1], int64[:, ::1], float64[::1]
_GRAPH = types.NamedTuple((_TABLE, _TABLE, _INTS), KernelGraph)
_STATE = types.NamedTuple((_TABLE, _INTS, _INTS, _INTS, _TABLE, _FLOATS, _INTS), KernelState)


def _compiled(signature: types.Type) -> Callable[[Callable], Callable]:
    """Compiles for one signature, once: the code is cached on disk."""
    return numba.njit(signature, cache=True, error_model="numpy")


@_compiled(uint64(_STATE))
def _random(state):
    z = np.uint64(state.total[RNG]) + np.uint64(0x9E3779B97F4A7C15)
    state.total[RNG] = np.int64(z)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@_compiled(int64(_STATE, int64))
def _below(state, limit):
    return np.int64(_random(state) % np.uint64(limit))


@_compiled(float64(_STATE))
def _uniform(state):
    return np.float64(_random(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@_compiled(int64(_STATE, int64))
def _key(state, event):
    return state.events[event, STAGE] * state.head.shape[0] + state.events[event, NODE]


@_compiled(void(_STATE, int64, int64))
def _bump(state, event, delta):
    before = state.excess[event]
    after = before + delta
    state.excess[event] = after
    state.total[OVERFLOW] += max(after, 0) - max(before, 0)


@_compiled(int64(_STATE, int64, int64, int64, int64, float64))
def _added_overflow(state, first, stage, node, delta, limit):
    """Overflow that `delta` more would add to the events after `first` and before (stage, node).

    Stops where it exceeds `limit`.
    """
    num_nodes = state.head.shape[0]
    excess = state.excess
    change = 0
    at = state.events[first, STAGE]
    event = first
    while change <= limit:
        if event < num_nodes:
            at += 1
            if at > stage:
                break
            event = state.head[at]
            while event == at and at < stage and change <= limit:
                before = excess[event]
                change += max(before + delta, 0) - max(before, 0)
                at += 1
                event = state.head[at]
        else:
            event = state.events[event, FOLLOWING]
        if at == stage and state.events[event, NODE] >= node:
            break
        before = excess[event]
        change += max(before + delta, 0) - max(before, 0)
    return change


@_compiled(void(_STATE, int64, int64, int64, int64))
def _range(state, first, stage, node, delta):
    """Adds `delta` to the events after `first` and before (stage, node)."""
    num_nodes = state.head.shape[0]
    excess = state.excess
    change = 0
    at = state.events[first, STAGE]
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
                excess[event] = before + delta
                at += 1
                event = state.head[at]
        else:
            event = state.events[event, FOLLOWING]
        if at == stage and state.events[event, NODE] >= node:
            break
        before = excess[event]
        change += max(before + delta, 0) - max(before, 0)
        excess[event] = before + delta
    state.total[OVERFLOW] += change


@_compiled(void(_STATE, int64, int64, int64))
def _add_range(state, first, last, delta):
    """Adds `delta` to the events after `first` up to and with `last`."""
    if first != last:
        _range(state, first, state.events[last, STAGE], state.events[last, NODE], delta)
        _bump(state, last, delta)


@_compiled(int64(_STATE, int64, int64))
def _copy_before(state, node, key):
    """The last event of `node` before `key`."""
    event = node
    while state.events[event, LATER] >= 0 and _key(state, state.events[event, LATER]) < key:
        event = state.events[event, LATER]
    return event


@_compiled(int64(_GRAPH, _STATE, int64, int64, int64))
def _last_use(graph, state, value, copy, before_key):
    """The last event after `copy` and before `before_key` that reads `value`; `copy` where there is none."""
    best = copy
    best_key = _key(state, copy)
    for position in range(graph.values[value, FIRST_USER], graph.values[value + 1, FIRST_USER]):
        event = graph.items[position]
        while event >= 0:
            key = _key(state, event)
            if key >= before_key:
                break
            if key > best_key:
                best, best_key = event, key
            event = state.events[event, LATER]
    return best


@_compiled(int64(_GRAPH, _STATE, int64, int64))
def _copy_end(graph, state, value, copy):
    after = state.events[copy, LATER]
    if after < 0:
        if graph.values[value, IS_OUTPUT]:
            return state.head.shape[0] - 1
        return _last_use(graph, state, value, copy, _NEVER)
    return _last_use(graph, state, value, copy, _key(state, after))


@_compiled(int64(_GRAPH, _STATE, int64, int64, int64))
def _first_use(graph, state, value, after_key, before_key):
    """The first event between the keys that reads `value`, or -1."""
    best = -1
    best_key = before_key
    for position in range(graph.values[value, FIRST_USER], graph.values[value + 1, FIRST_USER]):
        event = graph.items[position]
        while event >= 0:
            key = _key(state, event)
            if key >= best_key:
                break
            if key > after_key:
                best, best_key = event, key
                break
            event = state.events[event, LATER]
    return best


@_compiled(void(_GRAPH, _STATE, int64, int64, int64, int64))
def _count_dying(graph, state, value, copy, end, delta):
    """Notes that the copy's interval now ends (delta 1) or no longer ends (-1) at an in-place event."""
    if end == copy:
        return
    reuse = graph.nodes[state.events[end, NODE], REUSE]
    if reuse < 0 or graph.values[reuse, SIZE] != graph.values[value, SIZE]:
        return
    if graph.values[value, IS_OUTPUT] and end == state.head.shape[0] - 1:
        return
    before = state.events[end, DYING]
    state.events[end, DYING] = before + delta
    if before == 0 and delta > 0:
        _bump(state, end, -graph.values[reuse, SIZE])
    elif before == 1 and delta < 0:
        _bump(state, end, graph.values[reuse, SIZE])


@_compiled(int64(_GRAPH, _STATE, int64, int64))
def add_event(graph, state, stage, node):
    """Recomputes `node` in `stage`. Returns the event, or -1 when it exists or no room is left for events."""
    num_nodes = state.head.shape[0]
    key = stage * num_nodes + node
    previous = _copy_before(state, node, key)
    exists = state.events[previous, LATER] >= 0 and state.events[state.events[previous, LATER], STAGE] == stage
    if exists or state.total[NUM_EVENTS] == (state.events.shape[0] - state.head.shape[0]):
        return -1
    event = state.events[state.total[NUM_EVENTS], POOL]
    state.events[event, NODE] = node
    state.events[event, STAGE] = stage
    state.events[event, DYING] = 0
    after = state.head[stage]
    if after == stage or state.events[after, NODE] > node:
        state.head[stage] = event
    else:
        before = after
        after = state.events[before, FOLLOWING]
        while after != stage and state.events[after, NODE] < node:
            before = after
            after = state.events[before, FOLLOWING]
        state.events[before, FOLLOWING] = event
    state.events[event, FOLLOWING] = after
    follower = state.events[after, NODE]
    held = state.excess[after] - graph.nodes[follower, WORKSPACE] + graph.nodes[node, WORKSPACE]
    if state.events[after, DYING] > 0:
        held += graph.values[graph.nodes[follower, REUSE], SIZE]
    for position in range(graph.nodes[follower, FIRST_OUTPUT], graph.nodes[follower + 1, FIRST_OUTPUT]):
        held -= graph.values[graph.items[position], SIZE]
    state.excess[event] = held
    state.total[OVERFLOW] += max(held, 0)
    for position in range(graph.nodes[node, FIRST_INPUT], graph.nodes[node + 1, FIRST_INPUT]):
        value = graph.items[position]
        copy = _copy_before(state, graph.values[value, PRODUCER], key)
        end = _copy_end(graph, state, value, copy)
        if _key(state, end) < key:
            _count_dying(graph, state, value, copy, end, -1)
            _add_range(state, end, event, graph.values[value, SIZE])
            _count_dying(graph, state, value, copy, event, 1)
    for position in range(graph.nodes[node, FIRST_OUTPUT], graph.nodes[node + 1, FIRST_OUTPUT]):
        value = graph.items[position]
        size = graph.values[value, SIZE]
        if _key(state, _copy_end(graph, state, value, previous)) > key:
            end = _last_use(graph, state, value, previous, key)
            _add_range(state, end, event, -size)
            _count_dying(graph, state, value, previous, end, 1)
        _bump(state, event, size)
    after = state.events[previous, LATER]
    state.events[event, LATER] = after
    state.events[event, EARLIER] = previous
    state.events[previous, LATER] = event
    if after >= 0:
        state.events[after, EARLIER] = event
    state.total[COST] += graph.nodes[node, NODE_COST]
    state.total[NUM_EVENTS] += 1
    return event


@_compiled(void(_GRAPH, _STATE, int64))
def remove_event(graph, state, event):
    """Takes a recomputation out of the set."""
    stage, node = state.events[event, STAGE], state.events[event, NODE]
    key = _key(state, event)
    previous, after = state.events[event, EARLIER], state.events[event, LATER]
    for position in range(graph.nodes[node, FIRST_OUTPUT], graph.nodes[node + 1, FIRST_OUTPUT]):
        value = graph.items[position]
        size = graph.values[value, SIZE]
        if _copy_end(graph, state, value, event) != event:
            end = _last_use(graph, state, value, previous, key)
            _count_dying(graph, state, value, previous, end, -1)
            _add_range(state, end, event, size)
        _bump(state, event, -size)
    state.events[previous, LATER] = after
    if after >= 0:
        state.events[after, EARLIER] = previous
    for position in range(graph.nodes[node, FIRST_INPUT], graph.nodes[node + 1, FIRST_INPUT]):
        value = graph.items[position]
        copy = _copy_before(state, graph.values[value, PRODUCER], key)
        end = _copy_end(graph, state, value, copy)
        if _key(state, end) < key:
            _count_dying(graph, state, value, copy, event, -1)
            _add_range(state, end, event, -graph.values[value, SIZE])
            _count_dying(graph, state, value, copy, end, 1)
    state.total[OVERFLOW] -= max(state.excess[event], 0)
    after = state.head[stage]
    if after == event:
        state.head[stage] = state.events[event, FOLLOWING]
    else:
        while state.events[after, FOLLOWING] != event:
            after = state.events[after, FOLLOWING]
        state.events[after, FOLLOWING] = state.events[event, FOLLOWING]
    state.total[COST] -= graph.nodes[node, NODE_COST]
    state.total[NUM_EVENTS] -= 1
    place, moved = state.events[event, SLOT], state.events[state.total[NUM_EVENTS], POOL]
    state.events[place, POOL], state.events[moved, SLOT] = moved, place
    state.events[state.total[NUM_EVENTS], POOL], state.events[event, SLOT] = event, state.total[NUM_EVENTS]


@_compiled(void(_STATE, int64, int64, int64))
def _write(state, sign, stage, node):
    length = state.total[JOURNAL]
    state.journal[length, 0] = sign
    state.journal[length, 1] = stage
    state.journal[length, 2] = node
    state.total[JOURNAL] = length + 1


@_compiled(int64(_STATE, int64, int64))
def _find(state, stage, node):
    event = node
    while event >= 0 and state.events[event, STAGE] != stage:
        event = state.events[event, LATER]
    return event


@_compiled(void(_GRAPH, _STATE))
def _undo(graph, state):
    while state.total[JOURNAL] > 0:
        state.total[JOURNAL] -= 1
        sign, stage, node = state.journal[state.total[JOURNAL]]
        if sign > 0:
            remove_event(graph, state, _find(state, stage, node))
        else:
            add_event(graph, state, stage, node)


@_compiled(boolean(_GRAPH, _STATE, int64))
def _useless(graph, state, event):
    """Nothing reads what this recomputation yields."""
    if event < state.head.shape[0]:
        return False
    node = state.events[event, NODE]
    for position in range(graph.nodes[node, FIRST_OUTPUT], graph.nodes[node + 1, FIRST_OUTPUT]):
        if _copy_end(graph, state, graph.items[position], event) != event:
            return False
    return True


@_compiled(boolean(_STATE))
def _room(state):
    return state.total[JOURNAL] < state.journal.shape[0]


@_compiled(void(_GRAPH, _STATE, int64))
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
        stage, node = state.events[event, STAGE], state.events[event, NODE]
        if state.events[event, SLOT] >= state.total[NUM_EVENTS] or not _room(state):
            continue
        remove_event(graph, state, event)
        _write(state, -1, stage, node)
        for position in range(graph.nodes[node, FIRST_INPUT], graph.nodes[node + 1, FIRST_INPUT]):
            copy = _copy_before(state, graph.values[graph.items[position], PRODUCER], stage * num_nodes + node)
            if depth < stack.shape[0] and _useless(graph, state, copy):
                stack[depth] = copy
                depth += 1


@_compiled(boolean(_GRAPH, _STATE, int64, int64))
def _insert(graph, state, stage, node):
    """Adds one event; a former copy that nothing reads any longer goes."""
    event = add_event(graph, state, stage, node) if _room(state) else -1
    if event < 0:
        return False
    _write(state, 1, stage, node)
    previous = state.events[event, EARLIER]
    if _useless(graph, state, previous):
        _remove_cascade(graph, state, previous)
    return True


@_compiled(void(_INTS, int64))
def _sort(items, count):
    """Sorts the first `count` items, ascending."""
    for position in range(1, count):
        item = items[position]
        place = position
        while place > 0 and items[place - 1] > item:
            items[place] = items[place - 1]
            place -= 1
        items[place] = item


@_compiled(float64(_GRAPH, _STATE, int64, int64, int64, float64, float64))
def _hold_price(graph, state, stage, node, value, weight, limit):
    """`weight` times the overflow that holding `value` until (stage, node) adds; more than `limit` is cut short."""
    key = stage * state.head.shape[0] + node
    copy = _copy_before(state, graph.values[value, PRODUCER], key)
    end = _copy_end(graph, state, value, copy)
    if _key(state, end) >= key:
        return 0.0
    return weight * _added_overflow(state, end, stage, node, graph.values[value, SIZE], limit / weight)


@_compiled(int64(_GRAPH, _STATE, int64, int64, float64))
def _choose_closure(graph, state, stage, node, weight):
    """Which nodes to recompute in `stage` so that `node` can be: each input is held longer or recomputed in turn.

    Prices are memoized by node: the cost of a recomputation plus, for each input, the lesser of `weight` times the
    overflow that holding it adds and the price of recomputing it. Writes the chosen nodes, ascending, into
    `state.closure` and returns their number.
    """
    found = state.closure
    found[0] = node
    state.events[node, MARK] = 1
    count = 1
    position = 0
    while position < count:
        current = found[position]
        position += 1
        for index in range(graph.nodes[current, FIRST_INPUT], graph.nodes[current + 1, FIRST_INPUT]):
            producer = graph.values[graph.items[index], PRODUCER]
            if state.events[producer, MARK] > 0 or not graph.nodes[producer, RECOMPUTABLE] or count >= MAX_CLOSURE:
                continue
            cost = np.float64(graph.nodes[producer, NODE_COST])
            if _hold_price(graph, state, stage, current, graph.items[index], weight, cost) > cost:
                state.events[producer, MARK] = 1
                found[count] = producer
                count += 1
    _sort(found, count)
    for position in range(count):
        current = found[position]
        state.price[current] = 0.0
        for index in range(graph.nodes[current, FIRST_INPUT], graph.nodes[current + 1, FIRST_INPUT]):
            producer = graph.values[graph.items[index], PRODUCER]
            again = state.price[producer] if state.events[producer, MARK] > 0 else _DEAR
            hold = _hold_price(graph, state, stage, current, graph.items[index], weight, again)
            state.price[current] += min(hold, again)
        state.price[current] = (state.price[current] + graph.nodes[current, NODE_COST]) * (0.5 + _uniform(state))
    state.events[node, MARK] = 2
    chosen = 0
    for position in range(count - 1, -1, -1):
        current = found[position]
        if state.events[current, MARK] < 2:
            continue
        chosen += 1
        found[2 * MAX_CLOSURE - chosen] = current
        for index in range(graph.nodes[current, FIRST_INPUT], graph.nodes[current + 1, FIRST_INPUT]):
            producer = graph.values[graph.items[index], PRODUCER]
            if state.events[producer, MARK] == 1:
                again = state.price[producer]
                if _hold_price(graph, state, stage, current, graph.items[index], weight, again) > again:
                    state.events[producer, MARK] = 2
    for position in range(count):
        state.events[found[position], MARK] = 0
    for position in range(chosen):
        found[position] = found[2 * MAX_CLOSURE - chosen + position]
    return chosen


@_compiled(boolean(_GRAPH, _STATE, int64, int64, float64, int64, int64))
def _recompute(graph, state, stage, node, weight, hole_start, hole_bytes):
    """Adds (stage, node) and what it needs, priced with `hole_bytes` less held between `hole_start` and it."""
    if hole_bytes > 0:
        _range(state, hole_start, stage, node, -hole_bytes)
    chosen = _choose_closure(graph, state, stage, node, weight)
    if hole_bytes > 0:
        _range(state, hole_start, stage, node, hole_bytes)
    state.total[STACK] = chosen
    added = False
    for position in range(chosen):
        added = _insert(graph, state, stage, state.closure[position])
    state.total[STACK] = 0
    return added


@_compiled(int64(_STATE))
def _overloaded(state):
    """An event above the budget, the first from a random stage on."""
    num_nodes = state.head.shape[0]
    stage = _below(state, num_nodes)
    for _ in range(num_nodes):
        event = state.head[stage]
        while event != stage and state.excess[event] <= 0:
            event = state.events[event, FOLLOWING]
        if state.excess[event] > 0:
            return event
        stage = stage + 1 if stage + 1 < num_nodes else 0
    return np.int64(-1)


@_compiled(boolean(_GRAPH, _STATE, int64, float64))
def _evict(graph, state, event, weight):
    """Drops a random value that is only carried across `event`, and recomputes it where it is next read."""
    num_nodes = state.head.shape[0]
    count = graph.nodes[state.events[event, STAGE], CANDIDATES]
    key = _key(state, event)
    for _ in range(40 if count > 0 else 0):
        value = graph.items[_below(state, count)]
        node = graph.values[value, PRODUCER]
        copy = _copy_before(state, node, key)
        if copy == event:
            continue
        after = state.events[copy, LATER]
        limit = _NEVER if after < 0 else _key(state, after)
        use = _first_use(graph, state, value, key - 1, limit)
        if use == event:
            continue
        if use < 0:
            if not graph.values[value, IS_OUTPUT] or after >= 0:
                continue
            use = num_nodes - 1
        stage = state.events[use, STAGE]
        if stage * num_nodes + node <= key or state.events[copy, STAGE] == stage or node == stage:
            continue
        end = _last_use(graph, state, value, copy, key)
        hole = graph.values[value, SIZE] if _uniform(state) < 0.9 else 0
        return _recompute(graph, state, stage, node, weight, end, hole)
    return False


@_compiled(int64(_STATE))
def _random_event(state):
    return state.events[_below(state, state.total[NUM_EVENTS]), POOL]


@_compiled(boolean(_GRAPH, _STATE, float64))
def _shift(graph, state, weight):
    """Moves a recomputation to another stage between the former copy and the next."""
    event = _random_event(state)
    stage, node = state.events[event, STAGE], state.events[event, NODE]
    low = state.events[state.events[event, EARLIER], STAGE] + 1
    after = state.events[event, LATER]
    high = state.head.shape[0] - 1 if after < 0 else state.events[after, STAGE] - 1
    if high <= low:
        return False
    reach = np.int64(1) << _below(state, 8)
    target = min(max(stage + _below(state, 2 * reach + 1) - reach, low), high)
    if target == stage:
        return False
    _remove_cascade(graph, state, event)
    return _recompute(graph, state, target, node, weight, node, 0)


@_compiled(boolean(_GRAPH, _STATE, float64))
def _move(graph, state, weight):
    """One random move, written to the journal. Returns whether it changed anything."""
    overflow = state.total[OVERFLOW]
    choice = _uniform(state)
    if overflow == 0:
        choice += 0.4
    if choice < 0.5 or state.total[NUM_EVENTS] == 0:
        return overflow > 0 and _evict(graph, state, _overloaded(state), weight)
    if choice < 0.55:
        return _evict(graph, state, _below(state, state.head.shape[0]), weight)
    if choice < 0.7 or choice >= 1.3:
        _remove_cascade(graph, state, _random_event(state))
        return True
    if choice >= 0.9:
        return _shift(graph, state, weight)
    _remove_cascade(graph, state, _random_event(state))
    for _ in range(1 + _below(state, 4)):
        if state.total[OVERFLOW] <= overflow:
            break
        _evict(graph, state, _overloaded(state), weight)
    return True


@_compiled(void(_STATE, _TABLE))
def save(state, best):
    """Writes the set of events to `best`."""
    count = min(state.total[NUM_EVENTS], best.shape[0] - 1)
    best[0, 0] = state.total[COST]
    best[0, 1] = count
    for position in range(count):
        event = state.events[position, POOL]
        best[1 + position, 0] = state.events[event, STAGE]
        best[1 + position, 1] = state.events[event, NODE]


@_compiled(void(_GRAPH, _STATE, _TABLE, _FLOATS, int64, float64, float64))
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


@_compiled(void(_GRAPH, _STATE, _TABLE))
def load(graph, state, events):
    """Makes `events`, int64 [num_events, 2] of (stage, node), the set."""
    while state.total[NUM_EVENTS] > 0:
        remove_event(graph, state, state.events[0, POOL])
    for position in range(events.shape[0]):
        add_event(graph, state, events[position, 0], events[position, 1])


@_compiled(void(_GRAPH, _STATE, _INTS))
def prune(graph, state, nodes_by_cost):
    """Removes every recomputation that the budget does not need, those of costly nodes first."""
    for node in nodes_by_cost:
        event = state.events[node, LATER]
        while event >= 0:
            after = state.events[event, LATER]
            state.total[JOURNAL] = 0
            overflow = state.total[OVERFLOW]
            _remove_cascade(graph, state, event)
            if state.total[OVERFLOW] > overflow:
                _undo(graph, state)
                after = -1 if after < 0 else _find(state, state.events[after, STAGE], node)
            elif after >= 0 and state.events[after, SLOT] >= state.total[NUM_EVENTS]:
                after = -1
            event = after
