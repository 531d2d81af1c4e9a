"""The shapes a training step is planned for: from the data, or from the model's own shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend import compute_output_spec
from keras.src.trainers.data_adapters import get_data_adapter

from checkmate_tf.errors import BatchError


@dataclass(frozen=True)
class BatchSpec:
    """Structure, shapes and dtypes of what Keras hands to `train_step`: x, (x, y) or (x, y, sample_weight).

    `structure` nests TensorSpecs (composite ones included) and None as the batch nests tensors.
    """

    structure: Any

    @staticmethod
    def of(batch: Any) -> "BatchSpec":
        """The spec of a batch of tensors, arrays or specs."""
        return BatchSpec(tf.nest.map_structure(_spec, batch))

    @property
    def flat(self) -> list[tf.TensorSpec]:
        """Specs of the dense tensors, None left out."""
        return [spec for spec in tf.nest.flatten(self.structure, expand_composites=True) if spec is not None]

    @property
    def is_static(self) -> bool:
        return all(spec.shape.is_fully_defined() for spec in self.flat)

    @property
    def key(self) -> str:
        """Equal for batches that one traced function can take: (x, y, None), from `train_on_batch`, is (x, y)."""
        structure = self.structure
        while isinstance(structure, tuple) and structure and structure[-1] is None:
            structure = structure[:-1]
        return repr(structure)

    @property
    def batch_size(self) -> int | None:
        """The first dimension of the first tensor, None where it is unknown."""
        first = next(iter(self.flat), None)
        return first.shape[0] if first is not None and first.shape.rank else None

    @property
    def size_bytes(self) -> int:
        """Bytes of one batch of this static spec."""
        return sum(tensor_bytes(spec) for spec in self.flat)

    def pack(self, tensors: Sequence[tf.Tensor]) -> Any:
        """The batch of these flat tensors."""
        remaining = iter(tensors)
        leaves = tf.nest.flatten(self.structure, expand_composites=True)
        flat = [None if leaf is None else next(remaining) for leaf in leaves]
        return tf.nest.pack_sequence_as(self.structure, flat, expand_composites=True)

    def merged(self, other: "BatchSpec") -> "BatchSpec | None":
        """This spec with its unknown dimensions taken from `other`; None where the two do not fit each other."""
        try:
            tf.nest.assert_same_structure(self.structure, other.structure, expand_composites=True)
        except (TypeError, ValueError):
            return None
        pairs = zip(*(tf.nest.flatten(s.structure, expand_composites=True) for s in (self, other)), strict=True)
        leaves = []
        for mine, theirs in pairs:
            if (mine is None) != (theirs is None):
                return None
            if mine is not None and (mine.dtype != theirs.dtype or not mine.shape.is_compatible_with(theirs.shape)):
                return None
            leaves.append(mine if mine is None else tf.TensorSpec(mine.shape.merge_with(theirs.shape), mine.dtype))
        return BatchSpec(tf.nest.pack_sequence_as(self.structure, leaves, expand_composites=True))

    def with_batch_size(self, batch_size: int) -> "BatchSpec":
        """This spec with unknown first dimensions set."""

        def sized(spec: tf.TensorSpec | None) -> tf.TensorSpec | None:
            if spec is None or not spec.shape.rank or spec.shape[0] is not None:
                return spec
            return tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype)

        leaves = [sized(leaf) for leaf in tf.nest.flatten(self.structure, expand_composites=True)]
        return BatchSpec(tf.nest.pack_sequence_as(self.structure, leaves, expand_composites=True))


def flat_tensors(batch: Any) -> list[tf.Tensor]:
    """The dense tensors of a batch, None left out."""
    return [tensor for tensor in tf.nest.flatten(batch, expand_composites=True) if tensor is not None]


def tensor_bytes(spec: Any) -> int:
    """Bytes of a dense tensor, spec or variable of static shape; 0 where the shape is open."""
    num_elements = tf.TensorShape(spec.shape).num_elements()
    return 0 if num_elements is None else num_elements * tf.as_dtype(spec.dtype).size


@dataclass(frozen=True)
class Batch:
    """A batch to plan for: its spec, and tensors of that spec to measure a step with."""

    spec: BatchSpec
    tensors: tuple[tf.Tensor, ...]


def batch_for(model: keras.Model, *, batch_size: int | None, data: Any) -> Batch:
    """The batch that `fit` would train on: the first of `data`, or one of the model's own shapes.

    Raises BatchError where neither tells every size, or where they contradict each other.
    """
    if batch_size is not None and (isinstance(batch_size, bool) or not _is_positive(batch_size)):
        raise BatchError(f"batch_size is {batch_size!r}; it must be a whole number of at least 1")
    if data is not None:
        return _first_batch(data, batch_size)
    if batch_size is None:
        raise BatchError("neither batch_size nor data is given; pass rematerialize(model, batch_size=...) or data=...")
    return synthetic_batch(guess_spec(model, int(batch_size)))


def synthetic_batch(spec: BatchSpec) -> Batch:
    """A batch of zeros, valid as class indices and tokens."""
    return Batch(spec, tuple(tf.zeros(part.shape, part.dtype) for part in spec.flat))


def _first_batch(data: Any, batch_size: int | None) -> Batch:
    x, y, sample_weight = _unpacked(data)
    dataset_like = isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset, keras.utils.PyDataset))
    if batch_size is None and not dataset_like:
        batch_size = len(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))
    try:
        adapter = get_data_adapter(
            x, y, sample_weight=sample_weight, batch_size=None if dataset_like else batch_size, shuffle=False
        )
        first = next(iter(adapter.get_tf_dataset()))
    except (TypeError, ValueError, StopIteration) as error:
        raise BatchError(f"data of type {type(data).__name__} gives no batch: {error}") from error
    first = tf.nest.map_structure(lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, first)
    batch = Batch(BatchSpec.of(first), tuple(flat_tensors(first)))
    if batch_size is not None and batch.spec.batch_size != batch_size:
        raise BatchError(f"batch_size is {batch_size}, but the first batch of data has {batch.spec.batch_size} rows")
    return batch


def _unpacked(data: Any) -> tuple[Any, Any, Any]:
    if isinstance(data, (tuple, list)):
        return keras.utils.unpack_x_y_sample_weight(data)
    return data, None, None


def _is_positive(number: Any) -> bool:
    return isinstance(number, (int, np.integer)) and bool(number >= 1)


def guess_spec(model: keras.Model, batch_size: int, open_sizes: Mapping[int, int] | None = None) -> BatchSpec:
    """The batch that the model's own shapes and its loss suggest, without sample weights.

    `open_sizes`: of the dimensions, the batch being 0, that inputs leave open.
    Raises BatchError where sizes stay open.
    """
    inputs = _input_specs(model)
    x = keras.tree.map_structure(lambda tensor: _sized(tensor, batch_size, model, open_sizes or {}), inputs)
    outputs = keras.tree.map_structure(
        lambda tensor: keras.KerasTensor(tensor.shape, tensor.dtype), keras.tree.map_structure(_keras_tensor, x)
    )
    predictions = compute_output_spec(model, outputs, training=False)
    if model._compile_loss is None:
        return BatchSpec((x,))
    return BatchSpec((x, _target_specs(model, predictions)))


def _input_specs(model: keras.Model) -> Any:
    """The inputs of a functional or Sequential model, nested as the model takes them."""
    structure = getattr(model, "_inputs_struct", None)
    if structure is None and getattr(model, "_functional", None) is not None:
        structure = model._functional._inputs_struct
    if structure is None:
        raise BatchError(f"model {model.name!r} does not tell its input shapes; pass rematerialize(model, data=(x, y))")
    return structure


def _sized(tensor: Any, batch_size: int, model: keras.Model, open_sizes: Mapping[int, int]) -> tf.TensorSpec:
    known = (open_sizes.get(dim) if size is None else size for dim, size in enumerate(tensor.shape))
    shape = (batch_size, *list(known)[1:])
    if None in shape:
        raise BatchError(
            f"input {tensor.name!r} of model {model.name!r} has the open shape {tuple(tensor.shape)}; "
            "pass rematerialize(model, data=...) with a batch"
        )
    return tf.TensorSpec(shape, keras.backend.standardize_dtype(tensor.dtype))


def _keras_tensor(spec: tf.TensorSpec) -> Any:
    return keras.KerasTensor(tuple(spec.shape), spec.dtype.name)


def _target_specs(model: keras.Model, predictions: Any) -> Any:
    """Targets like the predictions; class indices, int64 [batch], where an output's loss is sparse."""
    flat = keras.tree.flatten(predictions)
    losses = _losses_by_output(model, len(flat))
    specs = []
    for tensor, loss in zip(flat, losses, strict=True):
        sparse = "sparse" in str(getattr(loss, "name", None) or getattr(loss, "__name__", None) or loss).lower()
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        specs.append(tf.TensorSpec(tensor.shape[:-1], "int64") if sparse else tf.TensorSpec(tensor.shape, dtype))
    return keras.tree.pack_sequence_as(predictions, specs)


def _losses_by_output(model: keras.Model, num_outputs: int) -> list[Any]:
    loss = model.loss
    flat = keras.tree.flatten(loss) if isinstance(loss, (dict, list, tuple)) else [loss]
    return flat if len(flat) == num_outputs else [flat[0]] * num_outputs


def _spec(leaf: Any) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, tf.TypeSpec):
        return tf.TensorSpec(leaf.shape, leaf.dtype) if isinstance(leaf, tf.TensorSpec) else leaf
    if not tf.is_tensor(leaf):
        leaf = tf.convert_to_tensor(leaf)
    spec = tf.type_spec_from_value(leaf)
    return tf.TensorSpec(spec.shape, spec.dtype) if isinstance(spec, tf.TensorSpec) else spec
