"""Represents an emitted step as a function."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef


@dataclass(frozen=True)
class EmittedFunction:
    """A step that follows a schedule.

    Args:
        function: has the arguments and results of the source function; the source itself if nothing was rewritten.
        copied_ops_per_node: node index -> number of operations computed again, for the nodes that repeat.
        num_control_edges: control edges that were added to keep the order.
        on_begin: called before each step; once, if a traced graph calls the function.
        on_end: called after each step; raises OffloadError if a value could not be copied out of memory.
    """

    function: tf.types.experimental.ConcreteFunction
    copied_ops_per_node: dict[int, int] = field(default_factory=dict)
    num_control_edges: int = 0
    on_begin: Callable[[], None] = lambda: None
    on_end: Callable[[], None] = lambda: None

    @property
    def graph_def(self) -> GraphDef:
        """Returns the operations, which can be written to a file."""
        return self.function.graph.as_graph_def()

    @property
    def num_copied_ops(self) -> int:
        """Returns the number of operations that are computed again."""
        return sum(self.copied_ops_per_node.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function. In a traced graph, results that are known without a run become constants, such as shapes.

        XLA does not look into the functions that a step calls, and assumes that each result depends on all inputs of
        the function. If an operation needs a result at compile time, such as the size of an embedding's gradient, the
        step would otherwise be compiled again whenever a variable changes.
        """
        if tf.executing_eagerly():
            self.on_begin()
            results = self.function(*args, **kwargs)
            self.on_end()
            return results
        with tf.init_scope():
            self.on_begin()
        results = self.function(*args, **kwargs)
        flat = tf.nest.flatten(results, expand_composites=True)
        traced = tf.nest.flatten(self.function.structured_outputs, expand_composites=True)
        known = [None if tensor is None else tf.get_static_value(tensor) for tensor in traced]
        flat = [
            result if value is None else tf.constant(value, result.dtype)
            for result, value in zip(flat, known, strict=True)
        ]
        return tf.nest.pack_sequence_as(results, flat, expand_composites=True)


def describe_arguments(function: tf.types.experimental.ConcreteFunction) -> str:
    """Returns dtypes and shapes of a function's arguments, without captures, such as "float32[8, 6], int64[8]"."""
    num_arguments = len(function.inputs) - len(function.captured_inputs)
    specs = [tf.TensorSpec.from_tensor(tensor) for tensor in function.inputs[:num_arguments]]
    sizes = ["[...]" if spec.shape.rank is None else str(spec.shape.as_list()) for spec in specs]
    return ", ".join(f"{spec.dtype.name}{shape}" for spec, shape in zip(specs, sizes, strict=True))
