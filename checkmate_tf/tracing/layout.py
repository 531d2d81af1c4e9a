"""Keeps operations on a GPU in the layout of the user's data, although grappler would change it.

On a GPU, grappler's layout optimizer converts convolutions in 32 bits from NHWC to NCHW, and adds a transpose wherever
the two layouts meet (`GenericLayoutOptimizer` of tensorflow/core/grappler/optimizers/generic_layout_optimizer.cc).
Operations that wait for each other keep transposes from cancelling out, and the transposes themselves wait for nothing.
They therefore hold copies of activations that no schedule contains. The kernels accept either layout.
"""

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

# Grappler's passes do not change an operation with this attribute (`GrapplerItem::NodesToPreserve`).
_PRESERVED = "_grappler_do_not_remove"
_LAYOUT = "data_format"


def may_change_layout() -> bool:
    """Returns whether grappler may change layouts, as it does for GPUs."""
    return bool(tf.config.list_logical_devices("GPU"))


def keep_layout(definition: NodeDef) -> None:
    """Makes grappler keep the layout of an operation, if it has one."""
    if _LAYOUT in definition.attr:
        definition.attr[_PRESERVED].b = True
