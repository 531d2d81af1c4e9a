from checkmate_tf.executors.emission.copies import Copies
from checkmate_tf.executors.xla.backends import GPU
from checkmate_tf.executors.xla.order.progress import Progress
from checkmate_tf.executors.xla.rules.recomputed_first import RecomputedFirst
from checkmate_tf.tf_private import XLA_BARRIER_TYPE
from tests.executors.xla.rules.steps import emit, make_graph, recompute_all
from tests.executors.xla.rules.test_held_relus import normalized


def list_ties(emitted) -> list[list[str]]:
    """The tensors under each barrier for which something waits."""
    nodes = emitted.graph_def.node
    return [list(node.input) for node in nodes if node.op == XLA_BARRIER_TYPE and "checkmate_tie" in node.name]


def list_first(emitted) -> set[str]:
    """The recomputed results that are under a barrier together with a gradient behind another barrier."""
    ties = [tie for tie in list_ties(emitted) if tie[0].startswith("checkmate_tie")]
    return {name for tie in ties for name in tie[1:] if "/recompute_" in name}


def test_gradients_wait_for_recomputed_results_that_products_read() -> None:
    assert list_first(emit(normalized, GPU, again=True))
    assert not list_first(emit(normalized, GPU.without("recomputed_first"), again=True))


def test_convolutions_read_what_they_waited_for_behind_the_barrier() -> None:
    """XLA would drop a tensor that only the barrier reads in its layout, and nothing would wait for it."""
    nodes = emit(normalized, GPU, again=True).graph_def.node
    (tie, *_) = (
        node for node in nodes if node.name.startswith("checkmate_tie") and node.input[0].startswith("checkmate_tie")
    )
    first = {f"{tie.name}:{number}": name for number, name in enumerate(tie.input) if "/recompute_" in name}
    later = [name for node in nodes[list(nodes).index(tie) + 1 :] for name in node.input]
    assert first
    assert set(first) & set(later)
    assert not set(first.values()) & set(later)


def test_results_that_nothing_reads_after_the_run_are_not_waited_for() -> None:
    """XLA would hold them, as they would be under one barrier with others."""
    graph = make_graph(normalized, GPU)
    order = recompute_all(graph).order

    def list_waited_for(order: tuple[int, ...], position: int) -> list[tuple[int, int]]:
        progress = Progress(graph, Copies(graph.training_graph), order)
        for earlier in range(position + 1):
            progress.note(earlier)
        return RecomputedFirst().list_first(progress, order[position])

    early = next(position for position, node in enumerate(order) if graph.graph.nodes[node].is_backward) + 1
    product = next(node for node in order if graph.graph.nodes[node].op_type == "Conv2D")
    users = {user for value in graph.graph.nodes[product].outputs for user in graph.graph.users[value]}
    read = next(position for position in range(early, len(order)) if order[position] in users)
    once = (*order[:early], product, *order[early:])
    assert list_waited_for(once, early)
    twice = (*order[:early], product, *order[early:read], product, *order[read:])
    assert not list_waited_for(twice, early), "it is computed once more before anything reads it"


def test_one_input_in_a_buffer_waits_and_no_weight_does() -> None:
    """XLA transposes a filter once for both passes, and would transpose it again behind a barrier."""
    tied = {name for tie in list_ties(emit(normalized, GPU, again=True)) for name in tie[1:]}
    assert tied
    assert not [name for name in tied if "ReadVariableOp" in name]
