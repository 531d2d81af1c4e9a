import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.executors.xla.backends import CPU, GPU
from checkmate_tf.executors.xla.compilers import choose_compiler, has_jax
from checkmate_tf.executors.xla.hlo.memory import read_xla_memory
from checkmate_tf.profiling.devices import DEVICES
from checkmate_tf.tf_private import XLA_BARRIER_TYPE
from checkmate_tf.training.batches import guess_spec
from tests.executors.xla.rules.steps import BATCH_SIZE, emit, list_ops, trace
from tests.training_steps import conv_chain, stateful_net


def build() -> tf.keras.Model:
    return conv_chain(num_layers=6, size=64)


def count_barriers(backend) -> int:
    return sum(node.op == XLA_BARRIER_TYPE and "/lowered/" in node.name for node in emit(build, backend).graph_def.node)


def test_gradients_of_relus_of_products_are_behind_barriers() -> None:
    ops = list_ops(build, "ReluGrad")
    assert len(ops) == 6
    assert all(GPU.lower(op) for op in ops)
    assert not any(CPU.lower(op) or GPU.without("relu_gradients").lower(op) for op in ops)
    assert count_barriers(GPU) == 6
    assert count_barriers(GPU.without("relu_gradients")) == 0


def test_other_activations_are_left() -> None:
    assert not any(GPU.lower(op) for op in list_ops(stateful_net, "SigmoidGrad"))


def test_a_gradient_behind_a_barrier_is_that_of_tensorflow() -> None:
    op = list_ops(build, "ReluGrad")[0]
    lowering = GPU.lower(op)
    assert lowering is not None
    gradient, result = tf.constant([1.0, -2.0, 3.0, 4.0]), tf.constant([0.0, 5.0, -0.0, np.nan])
    found = tf.function(lowering.build, jit_compile=True)(gradient, result)
    np.testing.assert_array_equal(found, tf.raw_ops.ReluGrad(gradients=gradient, features=result))


@pytest.mark.skipif(not has_jax(), reason="JAX and its CUDA plugin are not installed")
def test_an_h100_holds_one_tensor_for_each_convolution_with_its_relu() -> None:
    specs = guess_spec(trace(build)[0], BATCH_SIZE).flat
    image_bytes = BATCH_SIZE * 64 * 64 * 32 * 4
    taken = [
        read_xla_memory(choose_compiler(DEVICES["h100"]).compile_step(function, specs)).temporary_bytes / image_bytes
        for function in (emit(build, backend).function for backend in (GPU, GPU.without("relu_gradients")))
    ]
    # Six results of ReLUs, and a gradient; without the rule the six convolutions, too.
    assert taken[0] < 9
    assert taken[1] > 11
