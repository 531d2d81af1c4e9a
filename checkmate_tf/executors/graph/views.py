"""Makes views on a given device, for which TensorFlow copies a tensor that is on another one."""

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

HOST = "/device:CPU:0"


def make_view(name: str, output: tf.Tensor, device: str, inputs: list[str]) -> NodeDef:
    """Makes a view on a device, through which grappler does not look, of a tensor with an output's type and shape."""
    view = NodeDef(name=name, op="EnsureShape", device=device, input=inputs)
    view.attr["T"].type = output.dtype.as_datatype_enum
    view.attr["shape"].shape.CopyFrom(output.shape.as_proto())
    return view
