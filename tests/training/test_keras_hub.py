"""KerasHub's models have the gradients of their stock step when most of that step is computed again."""

from importlib.util import find_spec

import keras
import numpy as np
import pytest

from checkmate_tf.executors.graph.writer import emit
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.training.batches import choose_batch
from checkmate_tf.training.model_variables import build_for, list_training_variables
from checkmate_tf.training.step_part import make_whole_part
from experiments.training_steps import recompute_all, run
from experiments.wild import hub

BATCH_SIZE = 2
# The others are built as one of these is, of other sizes, or split their text for longer than they train here.
NAMES = (
    *("gemma2", "gemma3_lora", "llama3_int8_lora", "llama3_last_block", "mixtral"),
    *("bert", "deberta", "t5", "vit", "segformer", "diffusion"),
)
MODELS = {entry.name: entry for entry in hub.MODELS}
pytestmark = pytest.mark.skipif(find_spec("keras_hub") is None, reason="keras_hub is missing")


@pytest.mark.filterwarnings("ignore:.*destroy the mask information")
@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_computes_most_of_itself_again_trains_as_stock(name: str) -> None:
    entry = MODELS[f"hub_{name}"]
    keras.utils.set_random_seed(1)
    model = entry.build(1)
    batch = choose_batch(model, batch_size=BATCH_SIZE, data=entry.arrays(np.random.default_rng(0), BATCH_SIZE))
    build_for(model, batch.spec)
    training_graph = extract(make_whole_part(model).trace(batch.spec))
    again = emit(training_graph, recompute_all(training_graph.graph))
    assert again.num_copied_ops
    variables = list_training_variables(model)
    steps = (training_graph.function, again.function)
    states = [run(step, batch.tensors, variables)[-len(variables) :] for step in steps]
    # Momentum is the gradient after one step.
    is_momentum = [any(one is each for each in model.optimizer.variables) and one.shape != () for one in variables]
    expected, found = ([array for array, kept in zip(state, is_momentum, strict=True) if kept] for state in states)
    largest = max(np.abs(gradient).max() for gradient in expected)
    for gradient, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, gradient, rtol=0, atol=1e-4 * max(np.abs(gradient).max(), 1e-3 * largest))
