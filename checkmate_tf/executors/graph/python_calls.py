"""Makes operations of a step that call Python."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.tf_private import register_call


def make_call(name: str, call: Callable[..., Any], inputs: Sequence[str], dtypes: Sequence[tf.DType] = ()) -> NodeDef:
    """Makes an operation on the host that calls a function with arrays, and yields nothing.

    Args:
        call: must live as long as the step.
        inputs: names of tensors, which share their memory with the arrays, and then control inputs.
        dtypes: types of the tensors.
    """
    definition = NodeDef(name=name, op="PyFunc", device="/device:CPU:0", input=inputs)
    definition.attr["token"].s = register_call(call).encode()
    definition.attr["Tin"].list.type.extend(dtype.as_datatype_enum for dtype in dtypes)
    for attribute in ("Tin", "Tout"):
        definition.attr[attribute].list.SetInParent()
    return definition
