"""Writes the result of a ReLU to a buffer if the gradient of the next product reads it anyway.

XLA:GPU computes the comparison of a ReLU's gradient in the forward kernel, and holds it until the gradient, besides the
ReLU's result (seen in JAX 0.10.2, for an H100). From a buffer, the gradient reads the result itself. ReLUs of products
are left to `relu_gradients`.
"""

from dataclasses import dataclass

import tensorflow as tf

from checkmate_tf.executors.xla.model.buffers import BufferRule
from checkmate_tf.executors.xla.model.facts import Facts
from checkmate_tf.executors.xla.rules.relu_gradients import follows_product

# Operations that read the ReLU's result to compute the gradient of a product's weights.
_READERS = frozenset(
    {"Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter", "MatMul"}
)


@dataclass(frozen=True)
class HeldRelus(BufferRule):
    """Writes ReLUs that both a ReLU's gradient and the gradient of a product's weights read to buffers."""

    def find(self, facts: Facts) -> frozenset[int]:
        return frozenset(node for node in facts.large if any(map(_is_held, facts.get_ops(node))))


def _is_held(op: tf.Operation) -> bool:
    if op.type != "Relu" or follows_product(op):
        return False
    readers = {reader.type for reader in op.outputs[0].consumers()}
    return "ReluGrad" in readers and not readers.isdisjoint(_READERS)
