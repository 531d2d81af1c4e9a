"""Updates the state when a node enters or leaves a slot, or a value is fetched (see sequence_state.py)."""

from numba import boolean, int64, void

from checkmate_tf.solvers.fastsa.sequence_arrays import (
    ADDED,
    CAPACITY,
    COMPUTE,
    COST,
    COUNT,
    DYING,
    EVENTS,
    FETCH,
    FETCH_COST,
    FETCHES,
    FIXED_ORDER,
    FLIPPED,
    INPUTS,
    IS_OUTPUT,
    JOURNAL_LENGTH,
    JOURNAL_ROOM,
    LENGTH,
    LINKS_END,
    LIST,
    NODE,
    NOP,
    NUM_NODES,
    NUM_POSITIONS,
    NUM_SLOTS,
    NUM_VALUES,
    OFFLOAD_COST,
    OUTPUTS,
    PLACE,
    REMOVED,
    SINGLE,
    SIZE,
    SIZE_CLASS,
    SOFT,
    STATE,
    TABLE,
    TAKES_CLASS,
    USE,
    WORKSPACE,
    compiled,
    costs,
    deltas,
    event_list,
    journal,
    link_list,
    log2_size,
    node_table,
    occupied,
    slot_table,
    totals,
    transfers,
    value_table,
    weights,
)
from checkmate_tf.solvers.memory_tree import HIDDEN, add_range, add_slot, multiply_range


@compiled(int64, STATE, int64, int64)
def find(state, value, code):
    """Returns the index of the first event of the value that is at or after `code`."""
    low = value_table(state)[value, EVENTS]
    start = low
    high = low + value_table(state)[value, LENGTH]
    while low < high:
        middle = (low + high) >> 1
        if event_list(state)[middle] < code:
            low = middle + 1
        else:
            high = middle
    return low - start


@compiled(int64, STATE, int64, int64)
def event(state, value, index):
    """Returns the code of an event; -1 before the first and after the last."""
    if index < 0 or index >= value_table(state)[value, LENGTH]:
        return -1
    return event_list(state)[value_table(state)[value, EVENTS] + index]


@compiled(boolean, STATE, int64, int64)
def _lives_on(state, value, after):
    """Returns whether a copy is retained past a place.

    That depends on the next event there, which has to be a use, or the end for graph outputs.
    """
    return value_table(state)[value, IS_OUTPUT] == 1 if after < 0 else after & 3 == USE


@compiled(void, STATE, int64, int64, int64)
def _log(state, action, slot, subject):
    length = totals(state)[JOURNAL_LENGTH]
    journal(state)[length, 0] = action
    journal(state)[length, 1] = slot
    journal(state)[length, 2] = subject
    totals(state)[JOURNAL_LENGTH] = length + 1
    totals(state)[SINGLE] += 1


@compiled(void, STATE, int64, int64, int64)
def _insert(state, value, index, code):
    start = value_table(state)[value, EVENTS]
    length = value_table(state)[value, LENGTH]
    for place in range(start + length, start + index, -1):
        event_list(state)[place] = event_list(state)[place - 1]
    event_list(state)[start + index] = code
    value_table(state)[value, LENGTH] = length + 1


@compiled(void, STATE, int64, int64)
def _delete(state, value, index):
    start = value_table(state)[value, EVENTS]
    length = value_table(state)[value, LENGTH] - 1
    for place in range(start + index, start + length):
        event_list(state)[place] = event_list(state)[place + 1]
    value_table(state)[value, LENGTH] = length


@compiled(void, STATE, int64, int64, int64, int64)
def _change_range(state, value, first, last, sign):
    size = value_table(state)[value, SIZE]
    if size == 0:
        return
    add_range(deltas(state), first, last, sign * size)
    if totals(state)[SOFT] == 1:
        multiply_range(weights(state), first, last, 2.0 ** (sign * log2_size(state)[value]))


@compiled(void, STATE, int64, int64, int64)
def _change_slot(state, slot, amount, shown):
    if amount != 0:
        add_slot(deltas(state), slot, amount)
    if totals(state)[SOFT] == 1:
        factor = 2.0 ** (amount * log2_size(state)[totals(state)[NUM_VALUES]])
        multiply_range(weights(state), slot, slot, factor / HIDDEN if shown else factor * HIDDEN)


@compiled(void, STATE, int64, int64, int64)
def _count_death(state, value, slot, sign):
    """Counts one more or one less input that ends in `slot`. The first that fits saves an in-place node its output."""
    if node_table(state)[slot_table(state)[slot, NODE], TAKES_CLASS] != value_table(state)[value, SIZE_CLASS]:
        return
    slot_table(state)[slot, DYING] += sign
    if slot_table(state)[slot, DYING] == (1 if sign > 0 else 0):
        _change_range(state, value, slot, slot, -sign)


@compiled(void, STATE, int64, int64, int64, int64, int64)
def _change_start(state, value, slot, before, after, sign):
    """Adds a start between two events (sign 1) or removes it (sign -1). It splits a copy, or begins one of its own."""
    lives_on = _lives_on(state, value, after)
    if before >= 0 and lives_on:
        _change_range(state, value, (before >> 2) + 1, slot - 1, -sign)
        if before & 3 == USE:
            _count_death(state, value, before >> 2, sign)
    else:
        end = totals(state)[NUM_SLOTS] - 2 if lives_on else slot
        _change_range(state, value, slot, end, sign)


@compiled(void, STATE, int64, int64)
def _add_use(state, value, slot):
    index = find(state, value, 4 * slot + USE)
    before = event(state, value, index - 1)
    after = event(state, value, index)
    if not _lives_on(state, value, after):
        _change_range(state, value, (before >> 2) + 1, slot, 1)
        if before & 3 == USE:
            _count_death(state, value, before >> 2, -1)
        _count_death(state, value, slot, 1)
    _insert(state, value, index, 4 * slot + USE)


@compiled(void, STATE, int64, int64)
def _remove_use(state, value, slot):
    index = find(state, value, 4 * slot + USE)
    before = event(state, value, index - 1)
    after = event(state, value, index + 1)
    _delete(state, value, index)
    if not _lives_on(state, value, after):
        _change_range(state, value, (before >> 2) + 1, slot, -1)
        _count_death(state, value, slot, -1)
        if before & 3 == USE:
            _count_death(state, value, before >> 2, 1)


@compiled(void, STATE, int64, int64, int64)
def _add_start(state, value, slot, kind):
    index = find(state, value, 4 * slot + kind)
    before = event(state, value, index - 1)
    after = event(state, value, index)
    _insert(state, value, index, 4 * slot + kind)
    _change_start(state, value, slot, before, after, 1)


@compiled(void, STATE, int64, int64, int64)
def _remove_start(state, value, slot, kind):
    index = find(state, value, 4 * slot + kind)
    before = event(state, value, index - 1)
    after = event(state, value, index + 1)
    _delete(state, value, index)
    _change_start(state, value, slot, before, after, -1)


@compiled(int64, STATE, int64)
def first_slot(state, node):
    """Returns the slot in which the node is first computed; -1 for node -1."""
    return -1 if node < 0 else event(state, link_list(state)[node_table(state)[node, OUTPUTS]], 0) >> 2


@compiled(boolean, STATE, int64, int64)
def _keeps_input_order(state, slot, node):
    if first_slot(state, node) != slot or node + 1 == totals(state)[NUM_NODES]:
        return True
    first_output = link_list(state)[node_table(state)[node, OUTPUTS]]
    index = 1
    while event(state, first_output, index) & 3 != COMPUTE:
        index += 1
    return event(state, first_output, index) >> 2 < first_slot(state, node + 1)


@compiled(boolean, STATE, int64, int64)
def can_add(state, slot, node):
    """Returns whether the slot is free, every input is computed before it, and there is room for the events."""
    if slot_table(state)[slot, NODE] != NOP or totals(state)[JOURNAL_LENGTH] >= JOURNAL_ROOM - 8:
        return False
    for link in range(node_table(state)[node, INPUTS], node_table(state)[node, LINKS_END]):
        value = link_list(state)[link]
        if value_table(state)[value, LENGTH] + 2 > value_table(state)[value, CAPACITY]:
            return False
        if link < node_table(state)[node, OUTPUTS] and not -1 < event(state, value, 0) < 4 * slot:
            return False
    return totals(state)[FIXED_ORDER] == 0 or first_slot(state, node - 1) < slot


@compiled(boolean, STATE, int64)
def can_remove(state, slot):
    """Returns whether the node is computed elsewhere, too, and each value would still be computed before its uses."""
    node = slot_table(state)[slot, NODE]
    if node_table(state)[node, COUNT] < 2:
        return False
    for link in range(node_table(state)[node, OUTPUTS], node_table(state)[node, LINKS_END]):
        value = link_list(state)[link]
        if event(state, value, 0) >> 2 == slot and event(state, value, 1) & 3 != COMPUTE:
            return False
    return totals(state)[FIXED_ORDER] == 0 or _keeps_input_order(state, slot, node)


@compiled(void, STATE, int64, int64)
def flip_fetch(state, slot, value):
    """Fetches an input of the slot's node from host memory there, or stops doing so (mutation 4 of B.3)."""
    if event(state, value, find(state, value, 4 * slot)) == 4 * slot:
        _remove_start(state, value, slot, FETCH)
        transfers(state)[value, FETCHES] -= 1
        sign = -1
    else:
        _add_start(state, value, slot, FETCH)
        transfers(state)[value, FETCHES] += 1
        sign = 1
    once = 1 if sign > 0 else 0
    cost = transfers(state)[value, FETCH_COST]
    if transfers(state)[value, FETCHES] == once:
        cost += transfers(state)[value, OFFLOAD_COST]
    totals(state)[COST] += sign * cost
    _log(state, FLIPPED, slot, value)


@compiled(void, STATE, int64, int64)
def add_node(state, slot, node):
    """Puts a node into a free slot. The caller has checked `can_add`."""
    num_positions = totals(state)[NUM_POSITIONS]
    slot_table(state)[slot, NODE] = node
    slot_table(state)[slot, PLACE] = num_positions
    occupied(state)[num_positions] = slot
    totals(state)[NUM_POSITIONS] = num_positions + 1
    totals(state)[COST] += costs(state)[node]
    node_table(state)[node, COUNT] += 1
    _change_slot(state, slot, node_table(state)[node, WORKSPACE], True)
    for link in range(node_table(state)[node, INPUTS], node_table(state)[node, OUTPUTS]):
        _add_use(state, link_list(state)[link], slot)
    for link in range(node_table(state)[node, OUTPUTS], node_table(state)[node, LINKS_END]):
        _add_start(state, link_list(state)[link], slot, COMPUTE)
    _log(state, ADDED, slot, node)


@compiled(boolean, STATE, int64, int64)
def is_fetched(state, slot, value):
    """Returns whether a value that a slot's node reads is fetched there."""
    return transfers(state)[value, FETCHES] > 0 and event(state, value, find(state, value, 4 * slot)) == 4 * slot


@compiled(void, STATE, int64)
def remove_node(state, slot):
    """Empties a slot. The caller has checked `can_remove`, or puts the node elsewhere first."""
    node = slot_table(state)[slot, NODE]
    for link in range(node_table(state)[node, INPUTS], node_table(state)[node, OUTPUTS]):
        value = link_list(state)[link]
        if is_fetched(state, slot, value):
            flip_fetch(state, slot, value)
        _remove_use(state, value, slot)
    for link in range(node_table(state)[node, OUTPUTS], node_table(state)[node, LINKS_END]):
        _remove_start(state, link_list(state)[link], slot, COMPUTE)
    _change_slot(state, slot, -node_table(state)[node, WORKSPACE], False)
    node_table(state)[node, COUNT] -= 1
    totals(state)[COST] -= costs(state)[node]
    num_positions = totals(state)[NUM_POSITIONS] - 1
    last = occupied(state)[num_positions]
    place = slot_table(state)[slot, PLACE]
    occupied(state)[place] = last
    slot_table(state)[last, PLACE] = place
    totals(state)[NUM_POSITIONS] = num_positions
    slot_table(state)[slot, NODE] = NOP
    _log(state, REMOVED, slot, node)


@compiled(void, STATE)
def undo(state):
    """Reverts every change in the journal, the last one first."""
    single = totals(state)[SINGLE]
    for index in range(totals(state)[JOURNAL_LENGTH] - 1, -1, -1):
        action, slot, subject = journal(state)[index, 0], journal(state)[index, 1], journal(state)[index, 2]
        totals(state)[JOURNAL_LENGTH] = index
        if action == ADDED:
            remove_node(state, slot)
        elif action == REMOVED:
            add_node(state, slot, subject)
        else:
            flip_fetch(state, slot, subject)
    totals(state)[JOURNAL_LENGTH] = 0
    totals(state)[SINGLE] = single


@compiled(void, STATE, LIST, LIST, TABLE, entry=True)
def fill(state, order, place, fetches):
    """Puts the nodes of an order into the slots `place`, then adds the fetches (position, value)."""
    for position in range(len(order)):
        add_node(state, place[position], order[position])
        totals(state)[JOURNAL_LENGTH] = 0
    for index in range(len(fetches)):
        flip_fetch(state, place[fetches[index, 0]], fetches[index, 1])
        totals(state)[JOURNAL_LENGTH] = 0
