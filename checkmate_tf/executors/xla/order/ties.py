"""Ties a tensor to gradients, by data, so that it waits for them in a function that XLA compiles.

A tie has one of two forms:

- a barrier: one `XlaOptimizationBarrier` over the tied tensors and the gradients. Later readers of a gradient read the
  barrier's output. It costs nothing at run time, but XLA fuses nothing across it. XLA:GPU keeps barriers. XLA:CPU
  (TensorFlow 2.21) strips them before it merges equal operations, so that they have no effect. XLA:CPU of JAX 0.10.2
  strips them later, but before it orders operations.
- a select: a condition on the bits of one element of each gradient selects the tied tensor. It always holds, and no
  compiler pass evaluates it. Every backend keeps it. The select copies the tied tensor unless it fuses with its reader.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDefLibrary
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from checkmate_tf.tf_private import XLA_BARRIER_TYPE

# The name of a tensor in the graph that is written, and its type.
NamedTensor = tuple[str, tf.DType]

_BITS = {1: tf.uint8, 2: tf.int16, 4: tf.int32, 8: tf.int64}


@dataclass(frozen=True)
class Written:
    """The names of written tensors, and the functions that the written operations call."""

    results: tuple[str, ...]
    functions: FunctionDefLibrary


class Ties(ABC):
    """Ties of tensors that wait for the same gradients.

    Attributes:
        is_free: a tie copies no tensor that is in a buffer.
    """

    is_free: ClassVar[bool] = False

    def __init__(self, name: str, gradients: Sequence[NamedTensor], written: list[NodeDef]):
        self.name = name
        self.gradients = gradients
        self.written = written
        self.tied: dict[str, str] = {}

    def tie(self, tensor: str, dtype: tf.DType) -> str:
        """Returns the name of the tensor behind a tie, which cannot be computed before the gradients."""
        if tensor not in self.tied:
            self.tied[tensor] = self.add(tensor, dtype)
        return self.tied[tensor]

    @abstractmethod
    def add(self, tensor: str, dtype: tf.DType) -> str:
        """Writes the tie of one tensor, and returns the name to read instead."""

    def finish(self) -> dict[str, str]:
        """Returns the names to read from now on instead of other tensors."""
        return {}

    @staticmethod
    @abstractmethod
    def write_buffer(
        name: str, tensor: NamedTensor, known: NamedTensor, written: list[NodeDef], library: FunctionDefLibrary
    ) -> str:
        """Makes XLA write a tensor to a buffer instead of computing it within its readers. Returns the name to read.

        Operations are appended to `written`, and the functions that they call to `library`.

        Args:
            known: a tensor that exists before the other one, with values that XLA does not know at compile time.
        """


class Select(Ties):
    """Ties a tensor by a select with a condition on the gradients, and writes it to a buffer by a division."""

    def add(self, tensor: str, dtype: tf.DType) -> str:
        if not self.tied:
            self.write(hold_always, "holds", self.gradients)
        return self.write(
            select,
            f"tie_{len(self.tied)}",
            [(f"{self.name}/holds/result:0", tf.bool), (tensor, dtype)],
        )

    def write(self, build: Callable[..., tf.Tensor], name: str, inputs: Sequence[NamedTensor]) -> str:
        return write_operations(build, f"{self.name}/{name}", inputs, self.written).results[0]

    @staticmethod
    def write_buffer(
        name: str, tensor: NamedTensor, known: NamedTensor, written: list[NodeDef], library: FunctionDefLibrary
    ) -> str:
        build = divide if tensor[1].is_floating else _set_apart
        found = write_operations(build, name, [tensor, known], written)
        library.MergeFrom(found.functions)
        return found.results[0]


class Barrier(Ties):
    """Ties tensors by one barrier over them and the gradients, and writes a tensor to a buffer by its own barrier."""

    is_free = True

    def __init__(self, name: str, gradients: Sequence[NamedTensor], written: list[NodeDef]):
        super().__init__(name, gradients, written)
        self.barrier = NodeDef(name=name, op=XLA_BARRIER_TYPE)
        self.written.append(self.barrier)
        self.passed_on = {gradient: self.add(gradient, dtype) for gradient, dtype in gradients}

    def add(self, tensor: str, dtype: tf.DType) -> str:
        self.barrier.input.append(tensor)
        self.barrier.attr["T"].list.type.append(dtype.as_datatype_enum)
        return f"{self.name}:{len(self.barrier.input) - 1}"

    def finish(self) -> dict[str, str]:
        return self.passed_on

    @staticmethod
    def write_buffer(
        name: str, tensor: NamedTensor, known: NamedTensor, written: list[NodeDef], library: FunctionDefLibrary
    ) -> str:
        return Barrier(name, [tensor], written).finish()[tensor[0]]


def write_operations(
    build: Callable[..., Any], scope: str, inputs: Sequence[NamedTensor], written: list[NodeDef]
) -> Written:
    """Writes the operations that `build` makes from the inputs. `build` returns a tensor, or a tuple of tensors."""
    graph_def = _build_operations(build, tuple(dtype for _, dtype in inputs))
    given = {f"argument_{i}": tensor for i, (tensor, _) in enumerate(inputs)}
    for template in graph_def.node:
        if template.name in given:
            continue
        definition = NodeDef()
        definition.CopyFrom(template)
        definition.name = f"{scope}/{definition.name}"
        sources = [given.get(source, f"{scope}/{source}") for source in definition.input]
        del definition.input[:]
        definition.input.extend(sources)
        written.append(definition)
    num_results = len(written[-1].attr["T"].list.type)
    return Written(tuple(f"{scope}/result:{i}" for i in range(num_results)), graph_def.library)


@lru_cache(maxsize=256)
def _build_operations(build: Callable[..., Any], dtypes: tuple[tf.DType, ...]) -> GraphDef:
    """Builds operations on inputs of these types. The cache serves the many ties of a step."""
    with tf.Graph().as_default() as graph:
        arguments = [tf.compat.v1.placeholder(dtype, name=f"argument_{i}") for i, dtype in enumerate(dtypes)]
        tf.raw_ops.IdentityN(input=tf.nest.flatten(build(*arguments)), name="result")
    return graph.as_graph_def()


def select(holds: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns the tensor, selected by a condition that always holds."""
    return tf.raw_ops.SelectV2(condition=holds, t=x, e=tf.zeros_like(x))


def divide(x: tf.Tensor, known: tf.Tensor) -> tf.Tensor:
    """Returns the tensor divided by a 1 that XLA does not know. XLA does not repeat divisions for each reader."""
    return x / tf.where(hold_always(known), tf.ones([], x.dtype), tf.zeros([], x.dtype))


def _set_apart(x: tf.Tensor, known: tf.Tensor) -> tf.Tensor:
    """Returns the tensor in a buffer, as XLA fuses nothing with the result of a conditional."""
    then, other = _make_branches(x.dtype)
    return tf.raw_ops.If(cond=hold_always(known), input=[x], Tout=[x.dtype], then_branch=then, else_branch=other)[0]


@cache
def _make_branches(dtype: tf.DType) -> tuple[Any, Any]:
    """Returns functions that yield the tensor, and zeros. The cache keeps TensorFlow from deleting them."""
    spec = tf.TensorSpec(None, dtype)
    then, other = (tf.function(f, autograph=False) for f in (tf.identity, tf.zeros_like))
    return then.get_concrete_function(spec), other.get_concrete_function(spec)


def hold_always(*gradients: tf.Tensor) -> tf.Tensor:
    """Returns true for any bits of the gradients' first elements."""
    firsts = (tf.reshape(tf.slice(tf.reshape(gradient, [-1]), [0], [1]), []) for gradient in gradients)
    return _hold(tf.add_n([_count_bits(first) for first in firsts]))


def hold_each(x: tf.Tensor) -> tf.Tensor:
    """Returns true for each element, with any bits."""
    return _hold(_count_bits(x))


def _count_bits(x: tf.Tensor) -> tf.Tensor:
    as_integer = _BITS[x.dtype.size]
    whole = tf.cast(x, as_integer) if x.dtype.is_bool else tf.bitcast(x, as_integer)
    return tf.cast(tf.raw_ops.PopulationCount(x=whole), tf.float32)


def _hold(num_bits: tf.Tensor) -> tf.Tensor:
    """Returns true. XLA does not know that n < n + 1 for a number of bits.

    It does not fuse a quotient into a loop over elements, so the bits are counted once.
    """
    return num_bits / (num_bits + 1) < 1
