"""Adds recomputations to a set and removes them, and updates the memory that follows. All functions are compiled.

The retained values follow from the set, so every set of events is a valid schedule. A copy of a value is held from the
event that computes it to its last use before the next copy. Each change moves the ends of these intervals.
"""

from numba import boolean, int64, void

from checkmate_tf.solvers.annealing.stage_memory import (
    GRAPH,
    STATE,
    add_between,
    bump,
    compiled,
    excess_of,
    key_of,
    set_excess,
)
from checkmate_tf.solvers.annealing.stage_tables import (
    CHUNK_STAGES,
    COST,
    COUNT,
    DYING,
    EARLIER,
    FIRST_INPUT,
    FIRST_OUTPUT,
    FIRST_USER,
    FOLLOWING,
    IS_OUTPUT,
    JOURNAL,
    LATER,
    LAZY,
    NEVER,
    NODE,
    NODE_COST,
    NUM_EVENTS,
    OVERFLOW,
    POOL,
    PRODUCER,
    REUSE,
    SIZE,
    SLOT,
    STACK,
    STAGE,
    WORKSPACE,
)


@compiled(int64(STATE, int64, int64))
def copy_before(state, node, key):
    """Returns the last event of `node` before `key`."""
    event = node
    while state.events[event, LATER] >= 0 and key_of(state, state.events[event, LATER]) < key:
        event = state.events[event, LATER]
    return event


@compiled(int64(GRAPH, STATE, int64, int64, int64))
def last_use(graph, state, value, copy, before_key):
    """Returns the last event after `copy` and before `before_key` that reads `value`; without one, returns `copy`."""
    best = copy
    best_key = key_of(state, copy)
    for position in range(graph.values[value, FIRST_USER], graph.values[value + 1, FIRST_USER]):
        event = graph.items[position]
        while event >= 0:
            key = key_of(state, event)
            if key >= before_key:
                break
            if key > best_key:
                best, best_key = event, key
            event = state.events[event, LATER]
    return best


@compiled(int64(GRAPH, STATE, int64, int64))
def copy_end(graph, state, value, copy):
    """Returns the last event at which this copy of `value` is held."""
    after = state.events[copy, LATER]
    if after < 0:
        if graph.values[value, IS_OUTPUT]:
            return state.head.shape[0] - 1
        return last_use(graph, state, value, copy, NEVER)
    return last_use(graph, state, value, copy, key_of(state, after))


@compiled(int64(GRAPH, STATE, int64, int64, int64))
def first_use(graph, state, value, after_key, before_key):
    """Returns the first event between the keys that reads `value`; -1 without one."""
    best = -1
    best_key = before_key
    for position in range(graph.values[value, FIRST_USER], graph.values[value + 1, FIRST_USER]):
        event = graph.items[position]
        while event >= 0:
            key = key_of(state, event)
            if key >= best_key:
                break
            if key > after_key:
                best, best_key = event, key
                break
            event = state.events[event, LATER]
    return best


@compiled(void(GRAPH, STATE, int64, int64, int64, int64))
def _count_dying(graph, state, value, copy, end, delta):
    """Records that the copy's interval ends at an in-place event (delta 1), or does not any more (delta -1)."""
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
        bump(state, end, -graph.values[reuse, SIZE])
    elif before == 1 and delta < 0:
        bump(state, end, graph.values[reuse, SIZE])


@compiled(int64(GRAPH, STATE, int64, int64))
def add_event(graph, state, stage, node):
    """Recomputes `node` in `stage`. Returns the event, or -1 if it exists already or the set is full."""
    num_nodes = state.head.shape[0]
    key = stage * num_nodes + node
    previous = copy_before(state, node, key)
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
    chunk = stage // CHUNK_STAGES
    set_excess(state, event, chunk, held)
    state.chunks[chunk, COUNT] += 1
    state.total[OVERFLOW] += max(held + state.chunks[chunk, LAZY], 0)
    for position in range(graph.nodes[node, FIRST_INPUT], graph.nodes[node + 1, FIRST_INPUT]):
        value = graph.items[position]
        copy = copy_before(state, graph.values[value, PRODUCER], key)
        end = copy_end(graph, state, value, copy)
        if key_of(state, end) < key:
            _count_dying(graph, state, value, copy, end, -1)
            add_between(state, end, event, graph.values[value, SIZE])
            _count_dying(graph, state, value, copy, event, 1)
    for position in range(graph.nodes[node, FIRST_OUTPUT], graph.nodes[node + 1, FIRST_OUTPUT]):
        value = graph.items[position]
        size = graph.values[value, SIZE]
        if key_of(state, copy_end(graph, state, value, previous)) > key:
            end = last_use(graph, state, value, previous, key)
            add_between(state, end, event, -size)
            _count_dying(graph, state, value, previous, end, 1)
        bump(state, event, size)
    after = state.events[previous, LATER]
    state.events[event, LATER] = after
    state.events[event, EARLIER] = previous
    state.events[previous, LATER] = event
    if after >= 0:
        state.events[after, EARLIER] = event
    state.total[COST] += graph.nodes[node, NODE_COST]
    state.total[NUM_EVENTS] += 1
    return event


@compiled(void(GRAPH, STATE, int64))
def remove_event(graph, state, event):
    """Removes a recomputation from the set."""
    stage, node = state.events[event, STAGE], state.events[event, NODE]
    key = key_of(state, event)
    previous, after = state.events[event, EARLIER], state.events[event, LATER]
    for position in range(graph.nodes[node, FIRST_OUTPUT], graph.nodes[node + 1, FIRST_OUTPUT]):
        value = graph.items[position]
        size = graph.values[value, SIZE]
        if copy_end(graph, state, value, event) != event:
            end = last_use(graph, state, value, previous, key)
            _count_dying(graph, state, value, previous, end, -1)
            add_between(state, end, event, size)
        bump(state, event, -size)
    state.events[previous, LATER] = after
    if after >= 0:
        state.events[after, EARLIER] = previous
    for position in range(graph.nodes[node, FIRST_INPUT], graph.nodes[node + 1, FIRST_INPUT]):
        value = graph.items[position]
        copy = copy_before(state, graph.values[value, PRODUCER], key)
        end = copy_end(graph, state, value, copy)
        if key_of(state, end) < key:
            _count_dying(graph, state, value, copy, event, -1)
            add_between(state, end, event, -graph.values[value, SIZE])
            _count_dying(graph, state, value, copy, end, 1)
    state.total[OVERFLOW] -= max(excess_of(state, event), 0)
    state.chunks[stage // CHUNK_STAGES, COUNT] -= 1
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


@compiled(void(STATE, int64, int64, int64))
def _write(state, sign, stage, node):
    length = state.total[JOURNAL]
    state.journal[length, 0] = sign
    state.journal[length, 1] = stage
    state.journal[length, 2] = node
    state.total[JOURNAL] = length + 1


@compiled(int64(STATE, int64, int64))
def find(state, stage, node):
    """Returns the event (stage, node), or -1 if it is not in the set."""
    event = node
    while event >= 0 and state.events[event, STAGE] != stage:
        event = state.events[event, LATER]
    return event


@compiled(void(GRAPH, STATE))
def undo(graph, state):
    """Reverts every change in the journal, the last one first."""
    while state.total[JOURNAL] > 0:
        state.total[JOURNAL] -= 1
        sign, stage, node = state.journal[state.total[JOURNAL]]
        if sign > 0:
            remove_event(graph, state, find(state, stage, node))
        else:
            add_event(graph, state, stage, node)


@compiled(boolean(GRAPH, STATE, int64))
def _useless(graph, state, event):
    """Returns whether nothing reads the values of this recomputation."""
    if event < state.head.shape[0]:
        return False
    node = state.events[event, NODE]
    for position in range(graph.nodes[node, FIRST_OUTPUT], graph.nodes[node + 1, FIRST_OUTPUT]):
        if copy_end(graph, state, graph.items[position], event) != event:
            return False
    return True


@compiled(boolean(STATE))
def _room(state):
    return state.total[JOURNAL] < state.journal.shape[0]


@compiled(void(GRAPH, STATE, int64))
def remove_cascade(graph, state, event):
    """Removes a recomputation, and then those that fed only it."""
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
            copy = copy_before(state, graph.values[graph.items[position], PRODUCER], stage * num_nodes + node)
            if depth < stack.shape[0] and _useless(graph, state, copy):
                stack[depth] = copy
                depth += 1


@compiled(boolean(GRAPH, STATE, int64, int64))
def insert(graph, state, stage, node):
    """Adds one event, and removes an earlier copy if nothing reads it any more."""
    event = add_event(graph, state, stage, node) if _room(state) else -1
    if event < 0:
        return False
    _write(state, 1, stage, node)
    previous = state.events[event, EARLIER]
    if _useless(graph, state, previous):
        remove_cascade(graph, state, previous)
    return True
