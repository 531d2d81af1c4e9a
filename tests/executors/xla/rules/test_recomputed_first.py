from checkmate_tf.executors.xla.backends import GPU
from checkmate_tf.tf_private import XLA_BARRIER_TYPE
from tests.executors.xla.rules.steps import emit
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
