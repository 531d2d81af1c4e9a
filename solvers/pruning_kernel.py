"""Removes and restores positions of a schedule, and keeps its memory as `simulate` counts it (see pruning.py).

An event is one value that one position computes or reads. The events of a value are linked in the order of their
positions, so that a removed position affects only its neighbors, and restoring it relinks them.
"""

from typing import NamedTuple

import numpy as np

from checkmate_tf.solvers.compiling import keep_compiled
from checkmate_tf.solvers.memory_tree import add_range, add_slot

NONE = -1  # no event
_UNREAD_ROOM = 64  # capacity for repeats that one removal leaves unread; the others stay until the next pass


class Nodes(NamedTuple):
    """The reads and outputs of nodes: node v reads `links[start[v] : middle[v]]`, yields `[middle[v] : start[v + 1]]`.

    `takes` is the size of an input whose storage node v may take over, -1 for none. `size` and `is_output` are of
    values.
    """

    start: np.ndarray
    middle: np.ndarray
    links: np.ndarray
    workspace: np.ndarray
    takes: np.ndarray
    cost: np.ndarray
    size: np.ndarray
    is_output: np.ndarray


class Events(NamedTuple):
    """The events of a schedule. Those of position s are `first[s] : first[s + 1]`, in the order of its node's links."""

    order: np.ndarray
    first: np.ndarray
    position: np.ndarray
    computes: np.ndarray
    before: np.ndarray
    after: np.ndarray
    dying: np.ndarray  # [num_positions]: inputs that die there and fit the node's first output
    is_repeat: np.ndarray
    removed: np.ndarray
    deltas: np.ndarray  # memory of position s in slot s + 1 (memory_tree.py)


@keep_compiled()
def link_events(nodes, events):
    """Fills in the events of `order`, with all positions present."""
    newest = np.full(len(nodes.size), NONE, dtype=np.int64)
    known = np.zeros(len(nodes.middle), dtype=np.bool_)
    for position in range(len(events.order)):
        node = events.order[position]
        events.is_repeat[position] = known[node]
        known[node] = True
        for place in range(nodes.start[node], nodes.start[node + 1]):
            event = events.first[position] + place - nodes.start[node]
            value = nodes.links[place]
            events.position[event] = position
            events.computes[event] = place >= nodes.middle[node]
            events.before[event] = newest[value]
            events.after[event] = NONE
            if newest[value] != NONE:
                events.after[newest[value]] = event
            newest[value] = event
    for position in range(len(events.order)):
        node = events.order[position]
        for place in range(nodes.start[node], nodes.middle[node]):
            value = nodes.links[place]
            after = events.after[events.first[position] + place - nodes.start[node]]
            if nodes.size[value] == nodes.takes[node] and not _lives_on(nodes, events, value, after):
                events.dying[position] += 1


@keep_compiled()
def savings(nodes, events, ratio):
    """Returns, for each repeat, its cost per byte and position of the longer retention; -1 for other positions."""
    for position in range(len(events.order)):
        ratio[position] = -1.0
        if events.removed[position] or not events.is_repeat[position]:
            continue
        node = events.order[position]
        held = 1.0
        for place in range(nodes.middle[node], nodes.start[node + 1]):
            before = events.before[events.first[position] + place - nodes.start[node]]
            held += float(nodes.size[nodes.links[place]]) * (position - events.position[before])
        ratio[position] = nodes.cost[node] / held


@keep_compiled()
def remove_positions(nodes, events, positions, most):
    """Removes each of `positions`, and the repeats that only it needed, if the memory then stays at most `most`.

    Returns how many of `positions` were removed in their own right.
    """
    num_removed = 0
    unread = np.empty(_UNREAD_ROOM, dtype=np.int64)
    for position in positions:
        if events.removed[position] or not _try_to_remove(nodes, events, position, most):
            continue
        num_removed += 1
        length = _push_unread(nodes, events, position, unread, 0)
        while length > 0:
            length -= 1
            copy = unread[length]
            if not events.removed[copy] and _try_to_remove(nodes, events, copy, most):
                length = _push_unread(nodes, events, copy, unread, length)
    return num_removed


@keep_compiled()
def _try_to_remove(nodes, events, position, most):
    _change(nodes, events, position, -1)
    if events.deltas[1] <= most:
        events.removed[position] = True
        return True
    _change(nodes, events, position, 1)
    return False


@keep_compiled()
def _change(nodes, events, position, sign):
    """Removes a repeat's events (sign -1), or restores them (sign 1)."""
    node = events.order[position]
    for place in range(nodes.start[node], nodes.start[node + 1]):
        event = events.first[position] + place - nodes.start[node]
        before, after = events.before[event], events.after[event]
        events.after[before] = after if sign < 0 else event
        if after != NONE:
            events.before[after] = before if sign < 0 else event
        value = nodes.links[place]
        size = nodes.size[value]
        lives_on = _lives_on(nodes, events, value, after)
        if place >= nodes.middle[node]:
            if lives_on:
                add_range(events.deltas, events.position[before] + 2, position, -sign * size)
                _count_death(nodes, events, before, size, sign)
            else:
                add_slot(events.deltas, position + 1, sign * size)
        elif not lives_on:
            add_range(events.deltas, events.position[before] + 2, position + 1, sign * size)
            _count_death(nodes, events, event, size, sign)
            _count_death(nodes, events, before, size, -sign)
    if nodes.workspace[node] != 0:
        add_slot(events.deltas, position + 1, sign * nodes.workspace[node])


@keep_compiled()
def _count_death(nodes, events, event, size, sign):
    """Counts one more or one less input that ends at `event`. The first that fits saves an in-place node its output."""
    position = events.position[event]
    if events.computes[event] or nodes.takes[events.order[position]] != size:
        return
    events.dying[position] += sign
    if events.dying[position] == (1 if sign > 0 else 0):
        add_slot(events.deltas, position + 1, -sign * size)


@keep_compiled()
def _lives_on(nodes, events, value, after):
    """Returns whether a copy is retained past an event, given the next event of the value."""
    return nodes.is_output[value] if after == NONE else not events.computes[after]


@keep_compiled()
def _push_unread(nodes, events, position, unread, length):
    """Pushes the repeats that computed the inputs of `position` onto the stack, if their values are now unread."""
    node = events.order[position]
    for place in range(nodes.start[node], nodes.middle[node]):
        before = events.before[events.first[position] + place - nodes.start[node]]
        copy = events.position[before]
        if length < len(unread) and events.computes[before] and events.is_repeat[copy]:
            unread[length] = copy
            length += _is_unread(nodes, events, copy)
    return length


@keep_compiled()
def _is_unread(nodes, events, position):
    node = events.order[position]
    for place in range(nodes.middle[node], nodes.start[node + 1]):
        after = events.after[events.first[position] + place - nodes.start[node]]
        if _lives_on(nodes, events, nodes.links[place], after):
            return False
    return True
