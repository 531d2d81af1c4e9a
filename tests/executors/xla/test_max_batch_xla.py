"""max_batch_size of models that XLA compiles: what a size is compiled to decides."""

import keras
import numpy as np
import pytest
from keras import layers

from checkmate_tf import max_batch_size
from checkmate_tf.budget import format_bytes
from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.xla.hlo.memory import compile_step, read_xla_memory
from checkmate_tf.max_batch.sized_step import SizedStep
from checkmate_tf.planning.options import Options

MIB = 2**20


def chain() -> keras.Model:
    """Four convolutions whose outputs take 32 KiB a row."""
    keras.utils.set_random_seed(1)
    convolutions = [layers.Conv2D(8, 3, padding="same", activation="relu") for _ in range(4)]
    head = [layers.GlobalAveragePooling2D(), layers.Dense(4, "softmax")]
    model = keras.Sequential([keras.Input((32, 32, 3)), *convolutions, *head])
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=True)
    return model


def test_under_xla_what_is_compiled_decides() -> None:
    model = chain()
    found = max_batch_size(model, budget=32 * MIB, options=Options(costs="flops"), time_limit_s=6.0)
    assert found.stock_size is not None
    assert found.size > found.stock_size
    assert found.plan.measured_peak_bytes is not None
    assert found.plan.measured_peak_bytes <= 32 * MIB
    assert "compiling" in str(found)
    found.install()
    rng = np.random.default_rng(0)
    x, y = rng.random((found.size, 32, 32, 3), "f"), rng.integers(0, 4, found.size)
    assert np.isfinite(model.train_on_batch(x, y))
    # The stock step of this batch, compiled.
    step = SizedStep.of(chain(), "batch")
    traced = step.trace_model(found.size)
    module = compile_step(step.complete(found.size)(EmittedFunction(traced.function)), step.make_spec(found.size).flat)
    stock_bytes = read_xla_memory(module).peak_bytes + traced.resident.prefetched
    assert stock_bytes > 32 * MIB
    assert found.plan.stock_peak_bytes == pytest.approx(stock_bytes, rel=0.05)
    # A step of another size than was compiled knows nothing of what that one took.
    resized = found._modelled.make_step(found.size)
    assert found._modelled.sizes.largest != found.size
    assert resized.measure(resized.stock, 0).peak_bytes == stock_bytes
    assert f"{format_bytes(found.plan.stock_peak_bytes)} (predicted)" in str(found)
