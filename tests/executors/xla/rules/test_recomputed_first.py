from dataclasses import replace

from checkmate_tf.executors.xla.backends import GPU
from checkmate_tf.executors.xla.writer import emit_for_xla
from checkmate_tf.tf_private import XLA_BARRIER_TYPE
from tests.executors.xla.rules.steps import emit, make_graph, recompute_all
from tests.executors.xla.rules.test_held_relus import normalized


def list_ties(backend) -> list[list[str]]:
    """The tensors under each barrier for which something waits."""
    nodes = emit(normalized, backend, again=True).graph_def.node
    return [list(node.input) for node in nodes if node.op == XLA_BARRIER_TYPE and "checkmate_tie" in node.name]


def count_after_runs(backend) -> int:
    """How many barriers are over a gradient behind another barrier, and recomputed results."""
    return sum(
        tie[0].startswith("checkmate_tie") and any("/recompute_" in name for name in tie[1:])
        for tie in list_ties(backend)
    )


def test_gradients_wait_for_recomputed_results_that_products_read() -> None:
    assert count_after_runs(GPU) > 0
    assert count_after_runs(GPU.without("recomputed_first")) == 0


def test_one_input_in_a_buffer_waits_and_no_weight_does() -> None:
    """XLA transposes a filter once for both passes, and would transpose it again behind a barrier."""
    tied = {name for tie in list_ties(GPU) for name in tie[1:]}
    assert tied
    assert not [name for name in tied if "ReadVariableOp" in name]


def list_awaited(graph) -> set[str]:
    """The gradients for which runs of recomputation wait, and what else barriers are over first."""
    nodes = emit_for_xla(graph, recompute_all(graph)).graph_def.node
    return {node.input[0] for node in nodes if node.op == XLA_BARRIER_TYPE}


def test_recomputation_waits_for_a_gradient_that_the_stock_step_writes() -> None:
    """A barrier over a gradient of a ReLU would make XLA write it where its readers would have computed it."""
    graph = make_graph(normalized, GPU)
    names = [value.name.partition(":")[0] for value in graph.graph.values]
    reads = [{names[read] for read in graph.graph.nodes[node].inputs} for node in graph.graph.producer]
    products = [{name for name in each if name.endswith("/Conv2DBackpropInput")} for each in reads]
    before = list_awaited(graph)
    relu = next(v for v, name in enumerate(names) if name in before and name.endswith("/ReluGrad") and products[v])
    written = tuple(frozenset() if value == relu else kernels for value, kernels in enumerate(graph.written))
    after = list_awaited(replace(graph, written=written))
    assert names[relu] not in after
    assert products[relu] & (after - before)
