import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.executors.emission.copies import Copies
from checkmate_tf.executors.xla.backends import CPU, GPU
from checkmate_tf.executors.xla.order.gradient_ties import GradientTies
from checkmate_tf.executors.xla.order.ties import Barrier
from checkmate_tf.executors.xla.writer import emit_for_xla
from checkmate_tf.simulator import make_retain_all_schedule
from tests.executors.xla.rules.steps import BATCH_SIZE, list_ops, make_graph, trace
from tests.executors.xla.test_predicted_peaks import short_attention


def test_the_gradient_of_weights_that_a_sequence_reads_is_one_product() -> None:
    ops = list_ops(short_attention, "Sum")
    assert any(CPU.lower(op) for op in ops)
    assert not any(CPU.without("summed_products").lower(op) for op in ops)


@pytest.mark.parametrize("is_renamed", [True, False])
def test_a_product_behind_a_tie_is_found_or_summed_as_it_is(is_renamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All readers may read it behind a tie, or its sum alone."""
    graph = make_graph(short_attention, GPU)
    ops = graph.training_graph.ops
    products = {op: ops.inputs[op][0] for op in range(len(ops.ops)) if (found := graph.lower(op)) and found.within}
    tie_inputs, tied = GradientTies.tie_inputs, []

    def tie_products(self: GradientTies, op: int, name: str, inputs: list[str]) -> list[str]:
        inputs = tie_inputs(self, op, name, inputs)
        if op not in products:
            return inputs
        copies: Copies = self.progress.copies
        barrier = Barrier(f"{name}/tie", [(inputs[0], tf.float32)], copies.written)
        barrier.add(inputs[0], tf.float32)
        tied.append(name)
        if is_renamed:
            copies.renamed.update(barrier.finish())
        return [barrier.finish()[inputs[0]], *inputs[1:]]

    monkeypatch.setattr(GradientTies, "tie_inputs", tie_products)
    emitted = emit_for_xla(graph, make_retain_all_schedule(graph.graph))
    assert tied
    sums = {node.name for node in emitted.graph_def.node if node.op == "Sum"}
    assert sums.isdisjoint(tied) == is_renamed
    random = np.random.default_rng(0)
    batch = [tf.constant(random.random((BATCH_SIZE, *shape), dtype=np.float32)) for shape in ((16, 128), (10,))]
    found, expected = (tf.nest.flatten(one(*batch)) for one in (emitted.function, trace(short_attention)[2].function))
    for one, other in zip(found, expected, strict=True):
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
