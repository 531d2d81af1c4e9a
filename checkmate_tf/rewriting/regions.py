"""Finds the operations around a product of a step that treat each row independently of the others.

These operations are the product, and all that read or write values as wide as its result. For a language model, they
are the logits, the loss and its gradient, and metrics. For attention, they are the scores, their softmax and its
gradient. Narrow operations between two of them belong to the region, too. Operations outside of the region read only
narrow values by rows, and sums over all rows.

If some operations need results of all rows, the region is computed in several passes over the rows. The gradients of a
feed-forward block, for example, need the rest of the model. A later pass computes the wide values of an earlier pass
that it needs again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import tensorflow as tf

from checkmate_tf.profiling.constants import Constants
from checkmate_tf.rewriting.rows import SUM, Layout, Rows, Span
from checkmate_tf.rewriting.rules import (
    CHEAP_TYPES,
    FewerRows,
    NotByRows,
    Operands,
    OtherWindow,
    Placement,
    find_terms,
    lay,
    place,
)
from checkmate_tf.tracing.ops import OpList, TensorId, is_in_gradient
from checkmate_tf.tracing.semantics import SOURCE_TYPES, has_static_shape_value

PRODUCT_TYPES = frozenset({"BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul"})
# The forward and the backward pass of a block.
_MOST_PASSES = 2


@dataclass(frozen=True)
class Pass:
    """One loop over all rows.

    Args:
        head: the operation that the loop replaces, and after which it is named.
        members: operation -> the layouts of its inputs and outputs, in topological order.
        exits: tensors of the members that other operations read -> their layouts.
        copies: operations that the loop repeats for its own members, such as those of masks -> their layouts.
    """

    head: int
    members: dict[int, Placement]
    exits: dict[TensorId, Layout]
    copies: dict[int, Placement]


@dataclass(frozen=True)
class Region:
    """A part of a step that can be computed for any number of rows at a time.

    Args:
        product: the operation that yields the widest value.
        rows: the rows of that value. The rows of a chunk are not chosen yet.
        passes: the loops that compute the region, one after the other.
        constants: the values of inputs that are the same for all data.
    """

    ops: OpList
    product: int
    rows: Rows
    passes: tuple[Pass, ...]
    constants: Constants

    @property
    def members(self) -> dict[int, Placement]:
        """Maps the operations of all passes to the layouts of their inputs and outputs."""
        return {index: placement for one in self.passes for index, placement in one.members.items()}

    @property
    def exits(self) -> dict[TensorId, Layout]:
        """Maps the tensors that operations outside of a pass read to their layouts."""
        return {tensor: layout for one in self.passes for tensor, layout in one.exits.items()}


@dataclass(frozen=True)
class Block:
    """A product whose rows are wider than those of its input.

    Args:
        product: the operation.
        region: the operations that can be computed in chunks with it; None if there are none.
        reason: the reason why there are none, in words.
    """

    product: int
    region: Region | None
    reason: str = ""


def find_region(ops: OpList, constants: Constants) -> Region:
    """Returns the region of a step's widest product by tokens. Raises NotByRows, with the reason, if there is none."""
    reason = NotByRows("the step has no product of known shape that makes more of each row")
    sizes = {one: size for one, size in _measure_products(ops).items() if not _list_other_rows(ops.ops[one])}
    widest = max((width for width, _ in sizes.values()), default=0)
    for number, product in enumerate(index for index, (width, _) in sizes.items() if width == widest):
        try:
            return _find_by_tokens(ops, constants, product)
        except NotByRows as error:
            reason = reason if number else error
    raise reason


def find_blocks(ops: OpList, constants: Constants) -> Iterator[Block]:
    """Lists the products with wider rows than their input, such as those of feed-forward blocks and attention.

    No operation belongs to two of their regions. Products with the largest results come first.
    """
    taken: set[int] = set()
    for product, (width, _) in _measure_products(ops).items():
        if product in taken or width <= _find_input_width(ops, product):
            continue
        try:
            region = find_region_of(ops, constants, product)
        except NotByRows as error:
            yield Block(product, None, str(error))
            continue
        if taken.isdisjoint(region.members):
            taken.update(region.members)
            yield Block(product, region)


def find_region_of(ops: OpList, constants: Constants, product: int) -> Region:
    """Returns the region of one product. Raises NotByRows, with the reason, if there is none.

    The rows of a product with a matrix are tokens. The rows of a product of two batches, such as the scores of
    attention, are the rows of one of its operands: each row contains the same query of all entries. If these rows
    depend on each other, the entries of the batch are the rows.
    """
    choices = _list_other_rows(ops.ops[product])
    if not choices:
        return _find_by_tokens(ops, constants, product)
    failed: list[tuple[int, NotByRows]] = []
    while choices:
        rows, before = choices.pop(0)
        finder = _Finder(ops, constants, product, rows, before)
        try:
            return finder.find()
        except FewerRows as error:
            failed.append((len(finder.members), error))
            choices.insert(0, (replace(rows, num_rows=error.num_rows), before * rows.num_rows // error.num_rows))
        except NotByRows as error:
            failed.append((len(finder.members), error))
    # The choice with the most operations placed is the most likely one, so its reason is raised.
    raise max(failed, key=lambda one: one[0])[1]


def _find_by_tokens(ops: OpList, constants: Constants, product: int) -> Region:
    """Returns the region of a product whose rows are all its axes but the last."""
    width, elements = _measure_products(ops)[product]
    rows = Rows(elements // width, 1)
    try:
        return _Finder(ops, constants, product, rows).find()
    except OtherWindow as other:
        return _Finder(ops, constants, product, replace(rows, window=other.window)).find()


def _list_other_rows(product: tf.Operation) -> list[tuple[Rows, int]]:
    """Lists the possible rows of a product, each with the number of times that they follow each other in the result.

    The list is empty for a product whose rows are tokens.
    """
    try:
        first, second, result = find_terms(product)
    except (NotByRows, ValueError):
        return []
    shape = product.outputs[0].shape.as_list()
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    shared = {axis for axis in axes if result[axis] in first and result[axis] in second}
    if any(all(result[axis] in one and axis not in shared for axis in axes[:-1]) for one in (first, second)):
        return []
    num_entries = shape[0] if 0 in shared else 1
    alone = sorted((axis for axis in axes if axis not in shared), key=lambda axis: result[axis] not in first)
    rows = [(Rows(shape[axis], 1, tokens_per_row=num_entries), lay(shape, Span(axis, 1)).before) for axis in alone]
    if num_entries > 1 and alone:
        rows.append((Rows(num_entries, 1, tokens_per_row=shape[alone[0]]), 1))
    return rows


def _measure_products(ops: OpList) -> dict[int, tuple[int, int]]:
    """Maps the products of the forward pass to the width and the elements of their results, the largest first."""
    sizes: dict[int, tuple[int, int]] = {}
    for index, op in enumerate(ops.ops):
        if op.type not in PRODUCT_TYPES or is_in_gradient(op) or not op.outputs[0].shape.is_fully_defined():
            continue
        width, elements = op.outputs[0].shape[-1:].num_elements(), op.outputs[0].shape.num_elements()
        if 0 < width < elements:
            sizes[index] = (width, elements)
    return dict(sorted(sizes.items(), key=lambda item: -item[1][1]))


def _find_input_width(ops: OpList, product: int) -> int:
    """Returns the number of elements of a product's first operand for each row."""
    op = ops.ops[product]
    _, elements = op.outputs[0].shape[-1], op.outputs[0].shape.num_elements()
    num_rows = elements // op.outputs[0].shape[-1]
    return (op.inputs[0].shape.num_elements() or 0) // num_rows


class _Finder:
    """Grows a region from a product, until no operation outside of it reads or yields wide values."""

    def __init__(self, ops: OpList, constants: Constants, product: int, rows: Rows, before: int = 1):
        self.ops = ops
        self.constants = constants
        self.product = product
        self.width = ops.ops[product].outputs[0].shape.num_elements() // rows.num_rows
        self.rows = rows
        self.consumers = ops.map_consumers()
        self.members: dict[int, Placement] = {}
        # Wide tensors by rows -> the layout that their first reader among the members needs.
        self.wanted: dict[TensorId, Layout] = {(product, 0): Layout("rows", before)}
        self.left_out: set[int] = set()
        self.returned = set(ops.outputs)

    def find(self) -> Region:
        """Returns the region. Raises NotByRows if an operation of the region does not keep rows apart."""
        waiting = [self.product]
        while waiting:
            for index in waiting:
                self.add(index)
            waiting = sorted(self.list_between())
        self.members = dict(sorted(self.members.items()))
        for index in self.members:
            self.place(index)  # once more, now that all layouts are known
        return Region(self.ops, self.product, self.rows, tuple(self.list_passes()), self.constants)

    def add(self, first: int) -> None:
        """Adds an operation, the readers of its wide results by rows, and the operations that yield its wide inputs."""
        waiting = [(first, True)]
        while waiting:
            index, is_needed = waiting.pop()
            if index in self.members or (index in self.left_out and not is_needed):
                continue
            try:
                placement = self.place(index)
            except OtherWindow:
                raise
            except NotByRows:
                if is_needed:
                    raise
                self.left_out.add(index)
                continue
            self.members[index] = placement
            for position, layout in enumerate(placement.outputs):
                if layout.kind == "parts" or (layout.is_rows and self.is_wide((index, position))):
                    waiting += [(reader, True) for reader in self.list_readers((index, position))]
            for tensor, layout in zip(self.ops.inputs[index], placement.inputs, strict=True):
                if layout.is_rows and self.is_wide(tensor):
                    self.wanted.setdefault(tensor, layout)
                    # A reader may stay outside, because the tensor exists as a whole in that case.
                    waiting += [(reader, False) for reader in self.list_readers(tensor)]
                    if self.ops.ops[tensor[0]].type not in SOURCE_TYPES:
                        waiting.append((tensor[0], False))

    def find_copies(self, members: Mapping[int, Placement]) -> dict[int, Placement]:
        """Returns forward operations that compute inputs of members, such as a mask, from much smaller tensors."""
        copies: dict[int, Placement] = {}
        for index, placement in members.items():
            for tensor, layout in zip(self.ops.inputs[index], placement.inputs, strict=True):
                if layout.is_rows and tensor[0] not in self.members:
                    copies |= self.copy(tensor, layout, copies) or {}
        return dict(sorted(copies.items()))

    def copy(self, tensor: TensorId, layout: Layout, known: Mapping[int, Placement]) -> dict[int, Placement] | None:
        """Returns the operations that compute a tensor by rows from at most half its bytes; None if there are none."""
        left_bytes = self.count_bytes(tensor) / 2
        copies: dict[int, Placement] = {}
        waiting = [(tensor, layout)]
        while waiting:
            (index, position), layout = waiting.pop()
            placement = known.get(index) or copies.get(index) or self.place_copy(index, position, layout)
            if placement is None:
                left_bytes -= self.count_bytes((index, position))
                if left_bytes < 0:
                    return None
            elif placement.outputs[position] != layout:
                return None
            elif index not in copies:
                copies[index] = placement
                inputs = list(zip(self.ops.inputs[index], placement.inputs, strict=True))
                if any(one in self.members for (one, _), _ in inputs):
                    return None
                waiting += [(one, own) for one, own in inputs if own.is_rows]
                left_bytes -= sum(self.count_bytes(one) for one, own in inputs if not own.is_rows)
        return copies or None

    def place_copy(self, index: int, position: int, layout: Layout) -> Placement | None:
        """Returns the layouts of an operation that each chunk may compute for itself; None for any other."""
        op = self.ops.ops[index]
        if op.type not in CHEAP_TYPES or self.ops.is_backward[index] or self.ops.controls[index]:
            return None
        try:
            return self.place(index, {(index, position): layout})
        except NotByRows:
            return None

    def count_bytes(self, tensor: TensorId) -> int:
        """Returns the bytes of a tensor; 0 if its shape is unknown."""
        return self.ops.sizes_bytes[tensor[0]][tensor[1]] or 0

    def place(self, index: int, follows: Mapping[TensorId, Layout] | None = None) -> Placement:
        """Returns the layouts of an operation's inputs and outputs, from those known so far and those in `follows`."""
        tensors = self.ops.inputs[index]
        inputs = tuple(self.ops.ops[op].outputs[position] for op, position in tensors)
        op = self.ops.ops[index]
        values = tuple(map(self.constants.get_value, inputs))
        data = [tensor for tensor, value in zip(inputs, values, strict=True) if value is None]
        if not all(tensor.shape.is_fully_defined() for tensor in (*data, *op.outputs)):
            raise NotByRows(f"{op.name} ({op.type}) has shapes that depend on data")
        made = {**(follows or {}), **self.list_made(tensors)}
        layouts = tuple(map(made.get, tensors))
        wanted = {**self.wanted, **(follows or {})}
        results = tuple(wanted.get((index, position)) for position in range(len(op.outputs)))
        if not any((*layouts, *results)):
            layouts = tuple(map(self.wanted.get, tensors))
        return place(Operands(op, inputs, layouts, results, values, self.rows))

    def list_made(self, tensors: Iterable[TensorId]) -> dict[TensorId, Layout]:
        """Maps those tensors that members yield to their layouts."""
        return {(op, position): self.members[op].outputs[position] for op, position in tensors if op in self.members}

    def is_wide(self, tensor: TensorId) -> bool:
        """Returns whether a tensor has as many elements in each row as the product's result."""
        return self.count_width(tensor) == self.width

    def count_width(self, tensor: TensorId) -> float:
        """Returns the number of elements of a tensor for each row."""
        shape = self.ops.ops[tensor[0]].outputs[tensor[1]].shape
        elements, window = shape.num_elements() or 0, self.rows.window
        in_window = window is not None and elements == window.num_rows * self.width
        return self.width if in_window else elements / self.rows.num_rows

    def list_readers(self, tensor: TensorId) -> Iterator[int]:
        """Lists the operations that read a tensor's elements."""
        return (one for one in self.consumers.get(tensor, ()) if not has_static_shape_value(self.ops.ops[one]))

    def list_sources(self, index: int) -> set[int]:
        """Lists the operations that one reads or waits for."""
        if has_static_shape_value(self.ops.ops[index]):
            return set(self.ops.controls[index])
        return {source for source, _ in self.ops.inputs[index]}.union(self.ops.controls[index])

    def list_between(self) -> list[int]:
        """Lists the narrow operations by rows that are between members: they depend on members, and members on them.

        An operation that also reads a result of all rows is not listed, because members must then wait for that result.
        """
        num_ops = len(self.ops.ops)
        waits, follows = [False] * num_ops, [False] * num_ops
        layouts: dict[TensorId, Layout] = {}
        for index in range(num_ops):
            if index in self.members:
                continue
            sources = self.list_sources(index)
            if not any(waits[one] or follows[one] or one in self.members for one in sources):
                continue
            placement = None if any(waits[one] for one in sources) else self.place_narrow(index, layouts)
            follows[index], waits[index] = placement is not None, placement is None
            if placement is not None:
                layouts.update(((index, position), layout) for position, layout in enumerate(placement.outputs))
        leads = [False] * num_ops
        for index in reversed(range(num_ops)):
            if index in self.members or (follows[index] and leads[index]):
                for source in self.list_sources(index):
                    leads[source] = True
        return [index for index in range(num_ops) if follows[index] and leads[index]]

    def place_narrow(self, index: int, follows: Mapping[TensorId, Layout]) -> Placement | None:
        """Returns the layouts of an operation with narrow results by rows; None for any other."""
        try:
            placement = self.place(index, follows)
        except NotByRows:
            return None
        outputs = enumerate(placement.outputs)
        is_narrow = all(
            layout.is_rows and self.count_width((index, position)) <= self.width for position, layout in outputs
        )
        return placement if is_narrow else None

    def list_passes(self) -> Iterator[Pass]:
        """Lists the passes over the rows. Raises NotByRows if there are too many, or if wide values leave a pass."""
        numbers = self.number_passes()
        if max(numbers.values()) >= _MOST_PASSES:
            raise NotByRows(f"{self.ops.ops[self.product].name} would be computed {max(numbers.values()) + 1} times")
        known: set[TensorId] = set()
        for number in range(max(numbers.values()) + 1):
            own = [index for index in self.members if numbers[index] == number]
            exits = dict(self.list_exits(own, numbers))
            if not exits:
                continue
            needed: set[int] = set()
            waiting = [op for op, _ in exits]
            while waiting:
                index = waiting.pop()
                if index not in needed:
                    needed.add(index)
                    waiting += [op for op, i in self.ops.inputs[index] if op in self.members and (op, i) not in known]
            head = self.product if self.product in own else next(iter(exits))[0]
            members = {index: self.members[index] for index in sorted(needed)}
            yield Pass(head, members, exits, self.find_copies(members))
            known.update(exits)

    def number_passes(self) -> dict[int, int]:
        """Maps each member to the first pass that can compute it: the one after all results for which it waits."""
        numbers: dict[int, int] = {}
        waits = [0] * len(self.ops.ops)
        for index in range(len(self.ops.ops)):
            is_member, number = index in self.members, 0
            for source in self.list_sources(index):
                if source not in self.members:
                    number = max(number, waits[source])
                elif is_member and SUM not in self.members[source].outputs:
                    number = max(number, numbers[source])
                else:
                    number = max(number, numbers[source] + 1)
            if is_member:
                numbers[index] = number
            waits[index] = number
        return numbers

    def list_exits(self, own: list[int], numbers: dict[int, int]) -> Iterator[tuple[TensorId, Layout]]:
        """Lists the tensors that are read outside of a pass. Raises NotByRows if one of them is wide."""
        for index in own:
            for position, layout in enumerate(self.members[index].outputs):
                tensor, readers = (index, position), list(self.list_readers((index, position)))
                is_read_later = layout == SUM and any(numbers.get(one, 0) > numbers[index] for one in readers)
                if all(one in self.members for one in readers) and tensor not in self.returned and not is_read_later:
                    continue
                if layout.kind == "parts":
                    raise NotByRows(f"the step returns {self.ops.ops[index].name}, sums over parts of the rows")
                if layout.is_rows and self.is_wide(tensor):
                    raise NotByRows(f"the step returns {self.ops.ops[index].name}, a value of its widest product")
                yield tensor, layout
