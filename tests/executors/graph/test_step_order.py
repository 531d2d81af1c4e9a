"""Which steps must wait, beside what their data order."""

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.executors.graph.step_order import StepOrder


@given(st.data())
def test_every_step_starts_after_all_before_its_begin(data: st.DataObject) -> None:
    order, graph, begin = StepOrder(), nx.DiGraph(), 0
    free = set[int]()
    for step in range(data.draw(st.integers(1, 12))):
        graph.add_node(step)
        if data.draw(st.booleans()) and data.draw(st.booleans()):
            order.add_free_step()
            free.add(step)
            continue
        begin = data.draw(st.integers(begin, step))
        others = [earlier for earlier in range(step) if earlier not in free]
        read = data.draw(st.sets(st.sampled_from(others), max_size=2)) if others else set()
        graph.add_edges_from((earlier, step) for earlier in read)
        needed = set(range(begin)) - free
        by_data = nx.ancestors(graph, step) >= needed
        waits = order.add_step(begin, read)
        if waits:
            graph.add_edges_from((earlier, step) for earlier in needed)
        assert nx.ancestors(graph, step) >= needed
        assert by_data or waits


def test_a_line_of_data_needs_no_waits() -> None:
    order = StepOrder()
    assert not any(order.add_step(step, [step - 1] if step else []) for step in range(4))
    assert order.add_step(4, [0])
