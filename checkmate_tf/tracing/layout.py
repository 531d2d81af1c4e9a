"""Keeps operations on a GPU in the layout of the user's data, where grappler would give them another.

On a GPU grappler's layout optimizer makes NCHW of NHWC for convolutions in 32 bits, and adds a transpose wherever the
two meet (`GenericLayoutOptimizer` of tensorflow/core/grappler/optimizers/generic_layout_optimizer.cc). Operations that
wait for each other keep transposes from cancelling out, and the transposes themselves wait for nothing: they hold
copies of activations that no schedule knows of. The kernels take either layout.
"""

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

# Grappler's passes leave an operation with this attribute as it is (`GrapplerItem::NodesToPreserve`).
_PRESERVED = "_grappler_do_not_remove"
_LAYOUT = "data_format"


def may_change_layout() -> bool:
    """Returns whether grappler looks for a better layout: it does for GPUs."""
    return bool(tf.config.list_logical_devices("GPU"))


def keep_layout(definition: NodeDef) -> None:
    """Makes grappler leave an operation in the layout that it has, if it has one."""
    if _LAYOUT in definition.attr:
        definition.attr[_PRESERVED].b = True
