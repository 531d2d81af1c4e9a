"""Finds batches of other dtypes on which a planned step trains with the same numbers.

Keras converts the tensors of a batch. A functional model converts its inputs to the dtypes of its `Input`s, other
models convert floats to the dtype in which they compute, and losses convert their targets and weights. If a batch is
converted to the planned dtypes before the step instead, the numbers are the same.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from checkmate_tf.keras_private import get_input_structure, is_keras_method
from checkmate_tf.training.batches import BatchSpec

_INTEGERS = (tf.int32, tf.int64)


def convert_dtypes(model: keras.Model, given: BatchSpec, planned: BatchSpec) -> BatchSpec | None:
    """Returns the given spec with the planned dtypes, if batches converted to them train with the same numbers.

    Signed integers of 32 and 64 bits may be converted to each other in every model, other dtypes only if Keras's own
    step reads the batch. Returns None if the specs differ in more than such dtypes and sizes.
    """
    if given.key_of_structure != planned.key_of_structure:
        return None
    read = _list_read_dtypes(model, given)
    mine, theirs = _list_parts(given.structure), _list_parts(planned.structure)
    if not all(map(_is_alike, mine, theirs, read)):
        return None
    pairs = zip(mine, theirs, strict=True)
    converted = iter([tf.TensorSpec(m.shape, t.dtype) if isinstance(m, tf.TensorSpec) else m for m, t in pairs])
    return BatchSpec(tf.nest.map_structure(lambda part: None if part is None else next(converted), given.structure))


def _is_alike(given: Any, planned: Any, read: tf.DType | None) -> bool:
    """Returns whether the step reads the same numbers if a tensor is converted to the planned dtype first."""
    if not isinstance(given, tf.TensorSpec) or given.dtype == planned.dtype:
        return True  # Tensors that are not dense are equal, because the structures are equal.
    if given.dtype in _INTEGERS and planned.dtype in _INTEGERS:
        return True
    return read is not None and (planned.dtype == read or _is_exact(given.dtype, planned.dtype))


def _is_exact(given: tf.DType, planned: tf.DType) -> bool:
    """Returns whether the planned dtype represents every value of the given one."""
    is_number = planned.is_floating or planned.is_integer
    return is_number and np.can_cast(given.as_numpy_dtype, planned.as_numpy_dtype, "safe")


def _list_read_dtypes(model: keras.Model, spec: BatchSpec) -> list[tf.DType | None]:
    """Lists the dtypes to which Keras's own step converts the parts of a batch; None for parts that stay as they are.

    All are None if the model's step is not Keras's own.
    """
    parts = _list_parts(spec.structure)
    if not all(is_keras_method(model, name) for name in ("train_step", "compute_loss", "compute_metrics")):
        return [None] * len(parts)
    x, *targets = keras.utils.unpack_x_y_sample_weight(spec.structure)
    return [*_list_input_dtypes(model, x), *(_find_target_dtype(model, part) for part in _list_parts(targets))]


def _list_parts(structure: Any) -> list[Any]:
    return [part for part in tf.nest.flatten(structure) if part is not None]


def _list_input_dtypes(model: keras.Model, x: Any) -> list[tf.DType | None]:
    structure, parts = get_input_structure(model), _list_parts(x)
    if structure is None or not is_keras_method(model, "call"):
        return [_find_computed_dtype(model, part) for part in parts]
    inputs = keras.tree.flatten(structure)
    if isinstance(x, dict):
        named = {tensor.name: tensor for tensor in inputs} | (structure if isinstance(structure, dict) else {})
        inputs = [named[name] for name in sorted(x) if name in named and x[name] is not None]
    return [tf.as_dtype(one.dtype) for one in inputs] if len(inputs) == len(parts) else [None] * len(parts)


def _find_computed_dtype(model: keras.Model, part: Any) -> tf.DType | None:
    """Returns the dtype to which a model that is not functional converts a float."""
    is_float = isinstance(part, tf.TensorSpec) and part.dtype.is_floating
    return tf.as_dtype(model.input_dtype) if is_float and model.autocast else None


def _find_target_dtype(model: keras.Model, part: Any) -> tf.DType | None:
    """Returns the dtype to which losses convert targets or weights; None if a loss computes in a dtype of its own."""
    floatx = tf.as_dtype(keras.config.floatx())
    losses = [loss for loss in keras.tree.flatten(model.loss) if isinstance(loss, keras.Loss)]
    usual = all(tf.as_dtype(loss.dtype) == floatx for loss in losses)
    return floatx if usual and isinstance(part, tf.TensorSpec) and part.dtype != tf.string else None
