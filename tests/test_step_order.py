"""Which waits make each step start after all that it has to."""

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.step_order import StepOrder


@given(st.data())
def test_every_step_starts_after_all_before_its_begin(data: st.DataObject) -> None:
    order, graph, begin = StepOrder(), nx.DiGraph(), 0
    free = set[int]()
    for step in range(data.draw(st.integers(1, 12))):
        graph.add_node(step)
        if data.draw(st.booleans()) and data.draw(st.booleans()):
            order.free_step()
            free.add(step)
            continue
        begin = data.draw(st.integers(begin, step))
        others = [earlier for earlier in range(step) if earlier not in free]
        read = data.draw(st.sets(st.sampled_from(others), max_size=2)) if others else set()
        direct = [earlier for earlier in others if earlier < begin][-1:] if data.draw(st.booleans()) else []
        waits = order.step(begin, read, direct)
        assert read.isdisjoint(waits)
        assert set(direct) <= {*waits, *read}
        graph.add_edges_from((earlier, step) for earlier in [*read, *waits])
        assert nx.ancestors(graph, step) >= set(range(begin)) - free
        # None is superfluous but those asked for.
        for wait in set(waits) - set(direct):
            fewer = graph.copy()
            fewer.remove_edge(wait, step)
            assert not nx.ancestors(fewer, step) >= set(range(begin)) - free


def test_a_line_of_data_needs_no_waits() -> None:
    order = StepOrder()
    assert [order.step(step, [step - 1] if step else []) for step in range(4)] == [[], [], [], []]
    assert order.step(4, [0]) == [3]
