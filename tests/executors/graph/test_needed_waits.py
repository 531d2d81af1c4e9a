"""Which positions must wait, beside what their data order."""

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.executors.graph.needed_waits import NeededWaits


@given(st.data())
def test_every_position_starts_after_all_before_its_begin(data: st.DataObject) -> None:
    waits, graph, begin = NeededWaits(), nx.DiGraph(), 0
    free = set[int]()
    for position in range(data.draw(st.integers(1, 12))):
        graph.add_node(position)
        if data.draw(st.booleans()) and data.draw(st.booleans()):
            waits.add_free()
            free.add(position)
            continue
        begin = data.draw(st.integers(begin, position))
        others = [earlier for earlier in range(position) if earlier not in free]
        read = data.draw(st.sets(st.sampled_from(others), max_size=2)) if others else set()
        graph.add_edges_from((earlier, position) for earlier in read)
        needed = set(range(begin)) - free
        by_data = nx.ancestors(graph, position) >= needed
        must_wait = waits.add(begin, read)
        if must_wait:
            graph.add_edges_from((earlier, position) for earlier in needed)
        assert nx.ancestors(graph, position) >= needed
        assert by_data or must_wait


def test_a_line_of_data_needs_no_waits() -> None:
    waits = NeededWaits()
    assert not any(waits.add(position, [position - 1] if position else []) for position in range(4))
    assert waits.add(4, [0])
