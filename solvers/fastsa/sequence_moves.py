"""Mutations of FastSA's sequence: the paper's four (sections 2.2, B.2, B.3), and compound ones.

Each changes the state through sequence_events, so that `undo` can revert it, and returns whether it changed anything.
There are four compound mutations. `add_chain` ends a copy's life over a gap by a recompute chain or a fetch. `prune`
removes a recomputation and everything that only it needed, or a fetch. `shift` moves a node as far as its inputs and
users allow. `exchange` prunes and then adds chains at the peak, so that a recomputation can take the place of a fetch.
"""

from numba import boolean, int64, uint64, void

from checkmate_tf.solvers.fastsa.sequence_arrays import (
    CAPACITY,
    CHAIN_ROOM,
    COMPUTE,
    COST,
    COUNT,
    FETCH_COST,
    FIXED_ORDER,
    INPUTS,
    IS_OUTPUT,
    JOURNAL_LENGTH,
    JOURNAL_ROOM,
    LENGTH,
    LINKS_END,
    LIST,
    MOST_COST,
    NODE,
    NOP,
    NUM_NODES,
    NUM_POSITIONS,
    NUM_SLOTS,
    OUTPUTS,
    PRODUCER,
    RANDOM,
    RECOMPUTABLE,
    REMOVED,
    STATE,
    USE,
    compiled,
    costs,
    deltas,
    journal,
    link_list,
    node_table,
    occupied,
    scratch,
    slot_table,
    totals,
    transfers,
    value_table,
)
from checkmate_tf.solvers.fastsa.sequence_events import (
    add_node,
    can_add,
    can_remove,
    event,
    find,
    flip_fetch,
    is_fetched,
    remove_node,
    undo,
)
from checkmate_tf.solvers.fastsa.settings import SETTINGS
from checkmate_tf.solvers.memory_tree import peak_slot

# Numba treats numbers of a module as constants, but cannot read the fields of an object.
_PRUNE_TRIES = SETTINGS.prune_tries
_GAP_TRIES = SETTINGS.gap_tries
_SHIFT_POSITIONS = SETTINGS.shift_positions
_CHAIN_BITS = SETTINGS.chain_bits
_EXCHANGE_CHAINS = SETTINGS.exchange_chains


@compiled(int64, STATE, int64)
def below(state, limit):
    """Returns a random integer in 0..limit - 1 (xorshift64)."""
    bits = uint64(totals(state)[RANDOM])
    bits ^= bits << uint64(13)
    bits ^= bits >> uint64(7)
    bits ^= bits << uint64(17)
    totals(state)[RANDOM] = int64(bits)
    return int64(bits >> uint64(2)) % limit


@compiled(int64, STATE)
def random_position(state):
    """Draws a position and returns its slot."""
    return occupied(state)[below(state, totals(state)[NUM_POSITIONS])]


@compiled(boolean, STATE)
def add_random(state):
    """Mutation 1: puts any node into any free slot."""
    node = below(state, totals(state)[NUM_NODES])
    if totals(state)[COST] + costs(state)[node] > totals(state)[MOST_COST]:
        return False
    slot = 1 + below(state, totals(state)[NUM_SLOTS] - 2)
    if node_table(state)[node, RECOMPUTABLE] == 0 or not can_add(state, slot, node):
        return False
    add_node(state, slot, node)
    return True


@compiled(boolean, STATE)
def remove_random(state):
    """Mutation 2: empties the slot of any computation."""
    slot = random_position(state)
    if not can_remove(state, slot):
        return False
    remove_node(state, slot)
    return True


@compiled(boolean, STATE, int64, int64)
def move(state, source, target):
    """Moves the node of one slot to a free one in which every input is still computed before every use."""
    node = slot_table(state)[source, NODE]
    if not can_add(state, target, node):
        return False
    if target > source:
        for link in range(node_table(state)[node, OUTPUTS], node_table(state)[node, LINKS_END]):
            value = link_list(state)[link]
            after = event(state, value, 1)
            if event(state, value, 0) >> 2 == source and after & 3 != COMPUTE and -1 < after < 4 * target:
                return False
    add_node(state, target, node)
    if totals(state)[FIXED_ORDER] == 1 and not can_remove(state, source):
        undo(state)
        return False
    for link in range(node_table(state)[node, INPUTS], node_table(state)[node, OUTPUTS]):
        value = link_list(state)[link]
        if is_fetched(state, source, value):
            flip_fetch(state, target, value)
    remove_node(state, source)
    return True


@compiled(boolean, STATE)
def rotate_random(state):
    """Mutation 3: moves any computation to any free slot."""
    return move(state, random_position(state), 1 + below(state, totals(state)[NUM_SLOTS] - 2))


@compiled(boolean, STATE)
def flip_random(state):
    """Mutation 4: fetches any input of any computation, or stops doing so."""
    slot = random_position(state)
    node = slot_table(state)[slot, NODE]
    inputs = node_table(state)[node, OUTPUTS] - node_table(state)[node, INPUTS]
    if inputs == 0:
        return False
    value = link_list(state)[node_table(state)[node, INPUTS] + below(state, inputs)]
    if (
        transfers(state)[value, FETCH_COST] < 0
        or value_table(state)[value, LENGTH] + 2 > value_table(state)[value, CAPACITY]
    ):
        return False
    flip_fetch(state, slot, value)
    return True


@compiled(boolean, STATE)
def shift(state):
    """Moves a computation to a place between the last start of its inputs and the first event of its outputs."""
    source = random_position(state)
    node = slot_table(state)[source, NODE]
    low = 0
    for link in range(node_table(state)[node, INPUTS], node_table(state)[node, OUTPUTS]):
        value = link_list(state)[link]
        index = find(state, value, 4 * source) - 1
        while event(state, value, index) & 3 == USE:
            index -= 1
        low = max(low, event(state, value, index) >> 2)
    high = totals(state)[NUM_SLOTS] - 1
    for link in range(node_table(state)[node, OUTPUTS], node_table(state)[node, LINKS_END]):
        value = link_list(state)[link]
        after = event(state, value, find(state, value, 4 * source + COMPUTE) + 1)
        if after >= 0:
            high = min(high, after >> 2)
    if below(state, 2) == 0:
        reach = _SHIFT_POSITIONS * (totals(state)[NUM_SLOTS] // totals(state)[NUM_POSITIONS])
        low = max(low, source - reach)
        high = min(high, source + reach)
    target = low + 1 + below(state, max(1, high - low - 1))
    while target < high and slot_table(state)[target, NODE] != NOP:
        target += 1
    return target < high and move(state, source, target)


@compiled(boolean, STATE, int64)
def _useless(state, slot):
    node = slot_table(state)[slot, NODE]
    if node_table(state)[node, COUNT] < 2:
        return False
    for link in range(node_table(state)[node, OUTPUTS], node_table(state)[node, LINKS_END]):
        value = link_list(state)[link]
        after = event(state, value, find(state, value, 4 * slot + COMPUTE) + 1)
        if after & 3 == USE if after >= 0 else value_table(state)[value, IS_OUTPUT] == 1:
            return False
    return can_remove(state, slot)


@compiled(int64, STATE, int64)
def _find_fetched(state, slot):
    """Returns an input of the slot's node that is fetched there; -1 if there is none."""
    node = slot_table(state)[slot, NODE]
    for link in range(node_table(state)[node, INPUTS], node_table(state)[node, OUTPUTS]):
        value = link_list(state)[link]
        if is_fetched(state, slot, value):
            return value
    return -1


@compiled(boolean, STATE)
def prune(state):
    """Removes a fetch, or a recomputation and then every computation whose copies are unread."""
    slot = random_position(state)
    fetched = _find_fetched(state, slot)
    for _ in range(_PRUNE_TRIES):
        if fetched >= 0 or node_table(state)[slot_table(state)[slot, NODE], COUNT] > 1:
            break
        slot = random_position(state)
        fetched = _find_fetched(state, slot)
    if fetched >= 0:
        flip_fetch(state, slot, fetched)
        return True
    if not can_remove(state, slot):
        return False
    done = totals(state)[JOURNAL_LENGTH]
    remove_node(state, slot)
    while done < totals(state)[JOURNAL_LENGTH] < JOURNAL_ROOM // 2:
        action, slot, node = journal(state)[done, 0], journal(state)[done, 1], journal(state)[done, 2]
        done += 1
        if action != REMOVED:
            continue
        for link in range(node_table(state)[node, INPUTS], node_table(state)[node, OUTPUTS]):
            value = link_list(state)[link]
            before = event(state, value, find(state, value, 4 * slot) - 1)
            if before & 3 == COMPUTE and _useless(state, before >> 2):
                remove_node(state, before >> 2)
    return True


@compiled(void, LIST, int64)
def _sort(items, length):
    for end in range(1, length):
        item = items[end]
        place = end
        while place > 0 and items[place - 1] > item:
            items[place] = items[place - 1]
            place -= 1
        items[place] = item


@compiled(boolean, STATE, int64, int64, int64)
def _recompute(state, value, gap, use):
    nodes = scratch(state)
    nodes[0] = value_table(state)[value, PRODUCER]
    if node_table(state)[nodes[0], RECOMPUTABLE] == 0:
        return False
    length = 1
    chance = below(state, 4)  # 0: retain every input; 1: recompute half; 2, 3: recompute all
    longest = min(CHAIN_ROOM, 2 << below(state, _CHAIN_BITS))
    done = 0
    while done < length:
        node = nodes[done]
        done += 1
        for link in range(node_table(state)[node, INPUTS], node_table(state)[node, OUTPUTS]):
            value = link_list(state)[link]
            index = find(state, value, 4 * use)
            after = event(state, value, index)
            lives_on = after & 3 == USE if after >= 0 else value_table(state)[value, IS_OUTPUT] == 1
            if lives_on or event(state, value, index - 1) >> 2 > gap:
                continue
            before = value_table(state)[value, PRODUCER]
            if chance == 0 or node_table(state)[before, RECOMPUTABLE] == 0 or (chance == 1 and below(state, 2) == 0):
                continue
            known = False
            for place in range(length):
                known = known or nodes[place] == before
            if known or length == longest:
                continue
            nodes[length] = before
            length += 1
    cost = totals(state)[COST]
    for place in range(length):
        cost += costs(state)[nodes[place]]
    if cost > totals(state)[MOST_COST]:
        return False
    _sort(nodes, length)
    slot = use
    for place in range(length - 1, -1, -1):
        slot -= 1
        while slot > gap and slot_table(state)[slot, NODE] != NOP:
            slot -= 1
        if slot <= gap:
            return False
        nodes[CHAIN_ROOM + place] = slot
    for place in range(length):
        if not can_add(state, nodes[CHAIN_ROOM + place], nodes[place]):
            undo(state)
            return False
        add_node(state, nodes[CHAIN_ROOM + place], nodes[place])
    return True


@compiled(boolean, STATE, LIST, int64)
def add_chain(state, likely, at_peak):
    """Ends a copy's life over a gap: fetches the value at its next use, or recomputes it just before.

    The gap contains the peak, or ends at a random use. If an input would have to be retained over the gap, chance
    decides whether it is recomputed in turn. `likely` lists values, large ones more often.
    """
    if at_peak == 1:
        gap = peak_slot(deltas(state))
        value = likely[below(state, len(likely))]
        index = find(state, value, 4 * gap)
        for _ in range(_GAP_TRIES):
            if event(state, value, index) & 3 == USE and event(state, value, index) >> 2 > gap:
                break
            value = likely[below(state, len(likely))]
            index = find(state, value, 4 * gap)
        use = event(state, value, index)
        if use < 0 or use & 3 != USE or use >> 2 <= gap or index == 0:
            return False
        use >>= 2
    else:
        use = random_position(state)
        node = slot_table(state)[use, NODE]
        inputs = node_table(state)[node, OUTPUTS] - node_table(state)[node, INPUTS]
        if inputs == 0:
            return False
        value = link_list(state)[node_table(state)[node, INPUTS] + below(state, inputs)]
        before = event(state, value, find(state, value, 4 * use + USE) - 1) >> 2
        if before >= use - 1:
            return False
        gap = before + below(state, use - before)
    if transfers(state)[value, FETCH_COST] >= 0 and below(state, 2) == 0:
        if value_table(state)[value, LENGTH] + 2 > value_table(state)[value, CAPACITY]:
            return False
        flip_fetch(state, use, value)
        return True
    return _recompute(state, value, gap, use)


@compiled(boolean, STATE, LIST, int64)
def exchange(state, likely, budget):
    """Prunes, and then adds a few chains at the peak while it is above the budget."""
    if not prune(state):
        return False
    for _ in range(_EXCHANGE_CHAINS):
        if deltas(state)[1] <= budget or not add_chain(state, likely, 1):
            break
    return True
