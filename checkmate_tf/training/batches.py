"""Finds the shapes for which a training step is planned, from the data or from the model's own shapes."""

import contextlib
import gc
import inspect
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from checkmate_tf.arguments import check_size
from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import BatchError, BudgetError
from checkmate_tf.interrupts import hold_interrupts
from checkmate_tf.keras_private import get_compiled_loss, get_input_structure, infer_predictions
from checkmate_tf.measurement.device_memory import count_bytes_in_use, find_free_bytes
from checkmate_tf.measurement.kept_state import keep_state
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.training.prefetched import measure_prefetched_bytes
from checkmate_tf.training.replicas import count_replica_rows, count_replicas, take_first_replica

# If the batches of a dataset differ in size, the largest of this many is planned for.
_BATCHES_LOOKED_AT = 16
# These attributes of the model are replaced while its `fit` is asked for a batch.
_REPLACED = ("make_train_function", "train_function", "get_metrics_result", "history")


@dataclass(frozen=True)
class BatchSpec:
    """Structure, shapes and dtypes of the batch that `train_step` takes: x, (x, y) or (x, y, sample_weight).

    `structure` nests TensorSpecs (composite ones included) and None as the batch nests tensors.
    """

    structure: Any

    @staticmethod
    def of(batch: Any) -> "BatchSpec":
        """Makes the spec of a batch of tensors, arrays or specs."""
        return BatchSpec(tf.nest.map_structure(_make_spec, batch))

    @property
    def flat(self) -> list[tf.TensorSpec]:
        """Lists the specs of the dense tensors, without None."""
        return [spec for spec in tf.nest.flatten(self.structure, expand_composites=True) if spec is not None]

    @property
    def key(self) -> str:
        """Returns a text that is equal for all batches that one traced function can take.

        (x, y, None), from `train_on_batch`, has the key of (x, y).
        """
        structure = self.structure
        while isinstance(structure, tuple) and structure and structure[-1] is None:
            structure = structure[:-1]
        return repr(structure)

    def describe(self) -> str:
        """Returns dtypes and sizes, such as "float32[8, 6], int64[8]"."""
        return ", ".join(map(_describe_tensor, self.flat))

    def describe_differences(self, other: "BatchSpec") -> str:
        """Returns the differences from another spec as a short text."""
        if len(self.flat) != len(other.flat):
            return f"{self.describe()} instead of {other.describe()}"
        pairs = zip(map(_describe_tensor, self.flat), map(_describe_tensor, other.flat), strict=True)
        differing = [f"{mine} instead of {theirs}" for mine, theirs in pairs if mine != theirs]
        return ", ".join(differing) or "the same tensors in another structure"

    @property
    def key_without_sizes(self) -> str:
        """Returns the key with the sizes of all dimensions left out."""

        def drop_sizes(part: Any) -> Any:
            if not isinstance(part, tf.TensorSpec):
                return part
            return tf.TensorSpec([None] * (part.shape.rank or 0), part.dtype)

        return BatchSpec(tf.nest.map_structure(drop_sizes, self.structure)).key

    @property
    def key_of_structure(self) -> str:
        """Returns the key with the sizes and dtypes of all dense tensors left out."""

        def keep_rank(part: Any) -> Any:
            return tf.TensorSpec([None] * (part.shape.rank or 0)) if isinstance(part, tf.TensorSpec) else part

        return BatchSpec(tf.nest.map_structure(keep_rank, self.structure)).key

    @property
    def batch_size(self) -> int | None:
        """Returns the first dimension of the first tensor; None if it is unknown."""
        first = next(iter(self.flat), None)
        return first.shape[0] if first is not None and first.shape.rank else None

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of one batch of this static spec."""
        return sum(count_tensor_bytes(spec) for spec in self.flat)

    def pack(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Packs flat tensors into a batch of this structure."""
        remaining = iter(tensors)
        leaves = tf.nest.flatten(self.structure, expand_composites=True)
        flat = [None if leaf is None else next(remaining) for leaf in leaves]
        return tf.nest.pack_sequence_as(self.structure, flat, expand_composites=True)

    def is_within(self, other: "BatchSpec") -> bool:
        """Returns whether this spec differs from another in sizes alone, and no size is larger."""
        if len(self.flat) != len(other.flat) or self.key_without_sizes != other.key_without_sizes:
            return False
        pairs = zip(self.flat, other.flat, strict=True)
        return all(m <= n for mine, theirs in pairs for m, n in zip(mine.shape, theirs.shape, strict=True))

    def replace_rows(self, rows: int) -> "BatchSpec":
        """Returns this spec with another batch size, in every tensor that has the present one."""

        def replace_size(part: Any) -> Any:
            if not isinstance(part, tf.TensorSpec) or not part.shape.rank or part.shape[0] != self.batch_size:
                return part
            return tf.TensorSpec([rows, *part.shape[1:]], part.dtype)

        return BatchSpec(tf.nest.map_structure(replace_size, self.structure))

    def make_zeros(self) -> "Batch":
        """Makes a batch of zeros, valid as class indices and tokens. Raises BatchError if the device has no room."""
        with contextlib.suppress(BudgetError):  # the device does not report its free memory
            free_bytes = find_free_bytes(find_default_device())
            if self.size_bytes > free_bytes:
                raise BatchError(
                    f"a batch of {self.key} takes {format_bytes(self.size_bytes)}, and {format_bytes(free_bytes)} are "
                    "free: use a smaller batch_size"
                )
        return Batch(self, tuple(tf.zeros(part.shape, part.dtype) for part in self.flat), is_made_up=True)


def _describe_tensor(spec: tf.TensorSpec) -> str:
    sizes = "..." if spec.shape.rank is None else ", ".join("?" if n is None else str(n) for n in spec.shape)
    return f"{spec.dtype.name}[{sizes}]"


def flatten_batch(batch: Any) -> list[tf.Tensor]:
    """Lists the dense tensors of a batch, without None."""
    return [tensor for tensor in tf.nest.flatten(batch, expand_composites=True) if tensor is not None]


def count_tensor_bytes(spec: Any) -> int:
    """Returns the bytes of a dense tensor, spec or variable; 0 if its shape is open."""
    num_elements = tf.TensorShape(spec.shape).num_elements()
    return 0 if num_elements is None else num_elements * tf.as_dtype(spec.dtype).size


@dataclass(frozen=True)
class Batch:
    """A batch to plan for: its spec, and tensors with which to measure a step.

    Args:
        prefetched_bytes: of the other batches that `fit` holds while a step runs; None if unknown.
        is_made_up: the tensors are zeros.
        smaller: batches of the other shapes in the data, the largest first.
    """

    spec: BatchSpec
    tensors: tuple[tf.Tensor, ...]
    prefetched_bytes: int | None = None
    is_made_up: bool = False
    smaller: tuple["Batch", ...] = ()

    def describe(self) -> "Batch":
        """Returns the batch without tensors, and without batches of other shapes."""
        return replace(self, tensors=(), smaller=())


def choose_batch(model: keras.Model, *, batch_size: int | None, data: Any) -> Batch:
    """Returns the batch on which `fit` would train: the largest of the first in `data`, or one of the model's shapes.

    Raises BatchError if neither determines every size, or if they contradict each other.
    """
    if data is None:
        return describe_batch(model, batch_size=batch_size, data=None).spec.make_zeros()
    _check_batch_size(batch_size)
    return take_batch_from_fit(model, data, batch_size)


def describe_batch(model: keras.Model, *, batch_size: int | None, data: Any) -> Batch:
    """Returns the batch of `choose_batch`, without tensors."""
    _check_batch_size(batch_size)
    if data is not None:
        return take_batch_from_fit(model, data, batch_size).describe()
    if batch_size is None:
        raise BatchError("neither batch_size nor data is given; pass batch_size=... or data=...")
    return Batch(guess_spec(model, count_replica_rows(model, int(batch_size))), ())


def _check_batch_size(batch_size: Any) -> None:
    if batch_size is not None:
        check_size(batch_size, "batch_size")


class _BatchesTaken(Exception):
    """Ends a `fit` after its first batches are taken."""


def take_batch_from_fit(model: keras.Model, data: Any, batch_size: int | None) -> Batch:
    """Returns the batch that the model's own `fit` passes to the training step: of different sizes, the largest.

    `fit` prepares the data as in training, such as with a KerasHub preprocessor, and is ended before it trains.
    """
    found: list[Any] = []
    prefetched_bytes: int | None = None

    def take(iterator: Any) -> None:
        nonlocal prefetched_bytes
        before_bytes, began_s = count_bytes_in_use(), time.perf_counter()
        found.append(next(iterator))
        batch_s = time.perf_counter() - began_s
        sizes_differ = not all(spec.shape[1:].is_fully_defined() for spec in _list_specs(iterator) if spec.shape.rank)
        with contextlib.suppress(StopIteration):
            while sizes_differ and len(found) < _BATCHES_LOOKED_AT:
                found.append(next(iterator))
        if count_replicas(model) == 1:
            prefetched_bytes = measure_prefetched_bytes(iterator, found, before_bytes=before_bytes, batch_s=batch_s)
        raise StopIteration  # so that Keras ends the epoch, and stops the workers that load the data

    def make_train_function(force: bool = False) -> None:
        model.train_function = take

    def leave_fit() -> Any:
        if found:  # With a strategy, `fit` calls it first to build the metrics.
            raise _BatchesTaken
        return get_metrics_result()

    replaced = {name: vars(model)[name] for name in _REPLACED if name in vars(model)}
    get_metrics_result = model.get_metrics_result
    metrics = [variable.value for variable in model.metrics_variables]
    try:
        with keep_state(metrics), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Your input ran out of data")
            model.make_train_function = make_train_function
            model.get_metrics_result = leave_fit  # `fit` calls it after an epoch's batches
            model.fit(**_make_fit_arguments(model, data, batch_size))
    except _BatchesTaken:
        pass
    except (TypeError, ValueError, AttributeError, LookupError, tf.errors.OpError) as error:
        raise BatchError(_explain_no_batch(model, data, error)) from error
    finally:
        with hold_interrupts():
            for name in _REPLACED:
                vars(model).pop(name, None)
            for name, value in replaced.items():
                setattr(model, name, value)
        gc.collect()  # Keras's objects for the data of this call refer to each other.
    if not found:
        raise BatchError(f"data of type {type(data).__name__} has no batch; pass data with at least one batch")
    batches = [take_first_replica(model, drop_optionals(batch)) for batch in found]
    of_shapes = {spec.key: Batch(spec, tuple(flatten_batch(each))) for each in batches for spec in [BatchSpec.of(each)]}
    batch, *smaller = sorted(of_shapes.values(), key=_count_bytes, reverse=True)
    rows = None if batch.spec.batch_size is None else batch.spec.batch_size * count_replicas(model)
    if batch_size is not None and rows != batch_size:
        raise BatchError(
            f"batch_size is {batch_size}, but the first batch of data has {rows} rows; leave batch_size out"
        )
    further = tuple(replace(each, prefetched_bytes=prefetched_bytes) for each in smaller)
    return replace(batch, prefetched_bytes=prefetched_bytes, smaller=further)


def drop_optionals(data: Any) -> Any:
    """Returns data as the training step takes it: tensors, and None for an empty Optional of Keras's adapters."""

    def convert(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, tf.experimental.Optional):
            return None
        is_tensor = tf.is_tensor(leaf) or isinstance(leaf, tf.distribute.DistributedValues)
        return leaf if is_tensor else tf.convert_to_tensor(leaf)

    return tf.nest.map_structure(convert, data)


def _list_specs(iterator: Any) -> list[tf.TensorSpec]:
    structure = getattr(iterator, "element_spec", ())
    return [spec for spec in tf.nest.flatten(structure, expand_composites=True) if isinstance(spec, tf.TensorSpec)]


def _count_bytes(batch: Batch) -> int:
    return batch.spec.size_bytes


@dataclass(frozen=True)
class _FitSignature:
    """The arguments of a model's `fit`.

    Args:
        names: of all arguments.
        own: the arguments that Keras's `fit` lacks, in their order; empty if the model's is Keras's.
        of_data: the argument that takes the data.
        is_open: `fit` passes on arguments that it does not name.
    """

    names: frozenset[str]
    own: tuple[str, ...]
    of_data: str
    is_open: bool

    @staticmethod
    def of(model: keras.Model) -> "_FitSignature":
        """Reads the signatures of the model's class and its base classes, up to Keras's."""
        standard = list(inspect.signature(keras.Model.fit).parameters)[1:]
        names: list[str] = []
        of_data, is_open = "x", True
        for fit in [vars(kind)["fit"] for kind in type(model).__mro__ if "fit" in vars(kind)]:
            if fit is keras.Model.fit:
                break
            parameters = list(inspect.signature(fit).parameters.values())[1:]
            named = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
            others = [name for name in named if name not in standard]
            takes_any = any(one.kind == one.VAR_POSITIONAL for one in parameters)
            if of_data == "x" and others and not takes_any and "x" not in [*names, *named]:
                of_data = others[0]
            names += named
            is_open = any(one.kind == one.VAR_KEYWORD for one in parameters)
            if not is_open:
                break
        own = tuple(name for name in names if name not in standard)
        return _FitSignature(frozenset(names + (standard if is_open else [])), own, of_data, is_open)

    def is_for(self, data: Any, model: keras.Model) -> bool:
        """Returns whether data is a dictionary of arguments of `fit`, and not of the model's inputs by name."""
        if not isinstance(data, dict) or not data or set(data) <= _list_input_names(model):
            return False
        return set(data) <= self.names or (self.is_open and not set(data).isdisjoint(self.own))


def _make_fit_arguments(model: keras.Model, data: Any, batch_size: int | None) -> dict[str, Any]:
    """Returns the arguments of `fit`: a dictionary of arguments unchanged, a tuple of arrays as x, y, sample_weight."""
    signature = _FitSignature.of(model)
    if signature.is_for(data, model):
        arguments = dict(data)
    elif signature.of_data != "x":
        arguments = {signature.of_data: data}
    else:
        given = keras.utils.unpack_x_y_sample_weight(data) if isinstance(data, tuple) else (data, None, None)
        named = zip(("x", "y", "sample_weight"), given, strict=True)
        arguments = {name: value for name, value in named if value is not None}
    if "x" in arguments and not _is_batched(arguments["x"]):
        sized = [leaf for leaf in keras.tree.flatten(arguments["x"]) if hasattr(leaf, "shape")]
        if not sized and batch_size is None:
            raise ValueError("the number of rows in a batch is unknown; pass batch_size=..., arrays or a dataset")
        arguments = {"batch_size": batch_size or len(sized[0]), "shuffle": False} | arguments
    return arguments | ({"verbose": 0} if signature.is_open or "verbose" in signature.names else {})


def _is_batched(x: Any) -> bool:
    """Returns whether data are already in batches."""
    kinds = (tf.data.Dataset, tf.distribute.DistributedDataset, keras.utils.PyDataset)
    return isinstance(x, kinds) or hasattr(x, "__next__")


def _list_input_names(model: keras.Model) -> set[str]:
    structure = get_input_structure(model)
    keys = set(structure) if isinstance(structure, dict) else set()
    return keys | {tensor.name for tensor in keras.tree.flatten(structure) if tensor is not None}


def _explain_no_batch(model: keras.Model, data: Any, error: Exception) -> str:
    own = _FitSignature.of(model).own
    remedy = (
        f"; {type(model).__name__}.fit has arguments of its own ({', '.join(own)}): pass its arguments as a "
        "dictionary, data={...}"
    )
    return f"no batch could be made of data of type {type(data).__name__}: {error}" + (remedy if own else "")


def guess_spec(model: keras.Model, batch_size: int, open_sizes: Mapping[int, int] | None = None) -> BatchSpec:
    """Returns the batch that the model's own shapes and its loss suggest, without sample weights.

    `open_sizes` are the sizes of dimensions that inputs leave open, by dimension; the batch is dimension 0.

    Raises BatchError if sizes stay open.
    """
    inputs = _get_input_structure(model)
    x = keras.tree.map_structure(lambda tensor: _fill_open_sizes(tensor, batch_size, model, open_sizes or {}), inputs)
    outputs = keras.tree.map_structure(
        lambda tensor: keras.KerasTensor(tensor.shape, tensor.dtype), keras.tree.map_structure(_make_keras_tensor, x)
    )
    predictions = infer_predictions(model, outputs)
    if get_compiled_loss(model) is None:
        return BatchSpec((x,))
    return BatchSpec((x, _guess_target_specs(model, predictions)))


def _get_input_structure(model: keras.Model) -> Any:
    structure = get_input_structure(model)
    if structure is None:
        raise BatchError(f"model {model.name!r} does not declare its input shapes; pass data=(x, y)")
    return structure


def _fill_open_sizes(tensor: Any, batch_size: int, model: keras.Model, open_sizes: Mapping[int, int]) -> tf.TensorSpec:
    known = (open_sizes.get(dim) if size is None else size for dim, size in enumerate(tensor.shape))
    shape = (batch_size, *list(known)[1:])
    if None in shape:
        raise BatchError(
            f"input {tensor.name!r} of model {model.name!r} has the open shape {tuple(tensor.shape)}; "
            "pass data=... with a batch"
        )
    return tf.TensorSpec(shape, keras.backend.standardize_dtype(tensor.dtype))


def _make_keras_tensor(spec: tf.TensorSpec) -> Any:
    return keras.KerasTensor(tuple(spec.shape), spec.dtype.name)


def _guess_target_specs(model: keras.Model, predictions: Any) -> Any:
    """Returns targets like the predictions; class indices, int64 [batch], if the loss of an output is sparse."""
    flat = keras.tree.flatten(predictions)
    losses = _list_losses(model, len(flat))
    specs = []
    for tensor, loss in zip(flat, losses, strict=True):
        sparse = "sparse" in str(getattr(loss, "name", None) or getattr(loss, "__name__", None) or loss).lower()
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        specs.append(tf.TensorSpec(tensor.shape[:-1], "int64") if sparse else tf.TensorSpec(tensor.shape, dtype))
    return keras.tree.pack_sequence_as(predictions, specs)


def _list_losses(model: keras.Model, num_outputs: int) -> list[Any]:
    loss = model.loss
    flat = keras.tree.flatten(loss) if isinstance(loss, (dict, list, tuple)) else [loss]
    return flat if len(flat) == num_outputs else [flat[0]] * num_outputs


def _make_spec(leaf: Any) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, tf.TypeSpec):
        return tf.TensorSpec(leaf.shape, leaf.dtype) if isinstance(leaf, tf.TensorSpec) else leaf
    if not tf.is_tensor(leaf):
        leaf = tf.convert_to_tensor(leaf)
    spec = tf.type_spec_from_value(leaf)
    return tf.TensorSpec(spec.shape, spec.dtype) if isinstance(spec, tf.TensorSpec) else spec
