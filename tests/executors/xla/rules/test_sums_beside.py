from dataclasses import replace

from checkmate_tf.executors.xla.backends import GPU
from checkmate_tf.executors.xla.writer import emit_for_xla
from tests.executors.xla.rules.steps import make_graph, recompute_all
from tests.executors.xla.rules.test_held_relus import normalized


def count_sums_behind_barriers(backend, *, together: bool) -> int:
    """The sums of a gradient behind the barrier of a run; `together`: as if one kernel wrote both in the stock step."""
    graph = make_graph(normalized, backend)
    kernels = [frozenset({0 if together else value}) for value in range(len(graph.values))]
    nodes = emit_for_xla(replace(graph, written=tuple(kernels)), recompute_all(graph)).graph_def.node
    return sum(node.op == "Sum" and node.input[0].startswith("checkmate_tie") for node in nodes)


def test_a_sum_that_the_writer_of_a_gradient_computes_waits_for_nothing() -> None:
    assert count_sums_behind_barriers(GPU, together=True) == 0
    assert count_sums_behind_barriers(GPU.without("sums_beside"), together=True) > 0
    assert count_sums_behind_barriers(GPU, together=False) > 0
