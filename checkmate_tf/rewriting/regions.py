"""Finds the operations around the widest product of a step that treat each row independently of the others.

They begin with the product and are all that read or write values as wide as its result: for a language model the
logits, the loss and its gradient, and metrics. What lies between two of them belongs to them too. Outside them, only
narrow values by rows, and sums over all rows, are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from checkmate_tf.profiling.constants import Constants
from checkmate_tf.rewriting.rows import Layout, Rows
from checkmate_tf.rewriting.rules import NotByRows, Operands, Placement, place
from checkmate_tf.tracing.ops import OpList, TensorId, is_in_gradient
from checkmate_tf.tracing.semantics import SOURCE_TYPES, has_static_shape_value

_PRODUCTS = frozenset({"BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul"})


@dataclass(frozen=True)
class Region:
    """A region is a part of a step that can be computed by any number of rows at a time.

    Args:
        product: the operation that makes the widest value.
        num_rows: of that value.
        members: operation -> how its inputs and outputs depend on rows, in topological order.
        exits: tensors of the members that other operations read, and how they depend on rows.
        constants: the values of inputs that no data changes.
    """

    ops: OpList
    product: int
    num_rows: int
    members: dict[int, Placement]
    exits: dict[TensorId, Layout]
    constants: Constants


def find_region(ops: OpList, constants: Constants) -> Region:
    """Finds the region of a step's widest product. Raises NotByRows with the reason where there is none."""
    reason = NotByRows("the step has no product of known shape that makes more of each row")
    for number, product in enumerate(_list_widest_products(ops)):
        try:
            return _Finder(ops, constants, product).find()
        except NotByRows as error:
            reason = reason if number else error
    raise reason


def _list_widest_products(ops: OpList) -> list[int]:
    """Lists the products of the forward pass with the widest result, the largest result first."""
    sizes: dict[int, tuple[int, int]] = {}
    for index, op in enumerate(ops.ops):
        if op.type not in _PRODUCTS or is_in_gradient(op) or not op.outputs[0].shape.is_fully_defined():
            continue
        width, elements = op.outputs[0].shape[-1:].num_elements(), op.outputs[0].shape.num_elements()
        if 0 < width < elements:
            sizes[index] = (width, elements)
    widest = max((width for width, _ in sizes.values()), default=0)
    found = [index for index, (width, _) in sizes.items() if width == widest]
    return sorted(found, key=lambda index: -sizes[index][1])


class _Finder:
    """A finder grows a region from a product until nothing wide is left outside."""

    def __init__(self, ops: OpList, constants: Constants, product: int):
        self.ops = ops
        self.constants = constants
        self.product = product
        shape = ops.ops[product].outputs[0].shape.as_list()
        self.width = shape[-1]
        self.rows = Rows(ops.ops[product].outputs[0].shape.num_elements() // self.width, 1)
        self.consumers = ops.map_consumers()
        self.members: dict[int, Placement] = {}
        self.left_out: set[int] = set()
        self.returned = set(ops.outputs)

    def find(self) -> Region:
        """Returns the region. Raises NotByRows where an operation of it does not keep rows apart."""
        waiting = [self.product]
        while waiting:
            for index in waiting:
                self.add(index)
            waiting = sorted(self.list_between())
        members = dict(sorted(self.members.items()))
        for index in members:
            self.place(index)  # once more, now that all layouts are known
        return Region(self.ops, self.product, self.rows.num_rows, members, dict(self.list_exits()), self.constants)

    def add(self, first: int) -> None:
        """Adds an operation, all that reads what it makes of rows, and what makes the wide values that it reads."""
        waiting = [(first, True)]
        while waiting:
            index, is_needed = waiting.pop()
            if index in self.members or (index in self.left_out and not is_needed):
                continue
            try:
                placement = self.place(index)
            except NotByRows:
                if is_needed:
                    raise
                self.left_out.add(index)
                continue
            self.members[index] = placement
            for position, layout in enumerate(placement.outputs):
                if layout is Layout.PARTS or (layout is Layout.ROWS and self.is_wide((index, position))):
                    waiting += [(reader, True) for reader in self.list_readers((index, position))]
            for tensor, layout in zip(self.ops.inputs[index], placement.inputs, strict=True):
                if layout is Layout.ROWS and self.is_wide(tensor):
                    # Whatever stays outside is there as a whole anyway.
                    waiting += [(reader, False) for reader in self.list_readers(tensor)]
                    if self.ops.ops[tensor[0]].type not in SOURCE_TYPES:
                        waiting.append((tensor[0], False))

    def place(self, index: int) -> Placement:
        """Finds the layouts of an operation's inputs and outputs by those that are known so far."""
        tensors = self.ops.inputs[index]
        inputs = tuple(self.ops.ops[op].outputs[position] for op, position in tensors)
        op = self.ops.ops[index]
        values = tuple(map(self.constants.get_value, inputs))
        data = [tensor for tensor, value in zip(inputs, values, strict=True) if value is None]
        if not all(tensor.shape.is_fully_defined() for tensor in (*data, *op.outputs)):
            raise NotByRows(f"{op.name} ({op.type}) has shapes that depend on data")
        layouts = (self.members[op].outputs[position] if op in self.members else None for op, position in tensors)
        return place(Operands(op, inputs, tuple(layouts), values, self.rows))

    def is_wide(self, tensor: TensorId) -> bool:
        """Returns whether a tensor has as many elements in each row as the product's result."""
        shape = self.ops.ops[tensor[0]].outputs[tensor[1]].shape
        return shape.num_elements() == self.rows.num_rows * self.width

    def list_readers(self, tensor: TensorId) -> Iterator[int]:
        """Lists the operations that read a tensor's elements."""
        return (one for one in self.consumers.get(tensor, ()) if not has_static_shape_value(self.ops.ops[one]))

    def list_between(self) -> list[int]:
        """Lists the operations outside that depend on members and that members depend on."""
        ops, num_ops = self.ops, len(self.ops.ops)
        sources = [
            set() if has_static_shape_value(op) else {source for source, _ in ops.inputs[index]}
            for index, op in enumerate(ops.ops)
        ]
        follows, leads = [False] * num_ops, [False] * num_ops
        for index in range(num_ops):
            before = sources[index].union(ops.controls[index])
            follows[index] = any(follows[one] or one in self.members for one in before)
        for index in reversed(range(num_ops)):
            if leads[index] or index in self.members:
                for source in sources[index].union(ops.controls[index]):
                    leads[source] = True
        return [i for i in range(num_ops) if follows[i] and leads[i] and i not in self.members]

    def list_exits(self) -> Iterator[tuple[TensorId, Layout]]:
        """Lists what is read outside. Raises NotByRows where that is wide."""
        for index, placement in self.members.items():
            for position, layout in enumerate(placement.outputs):
                tensor = (index, position)
                if (
                    not any(one not in self.members for one in self.list_readers(tensor))
                    and tensor not in self.returned
                ):
                    continue
                if layout is Layout.PARTS:
                    raise NotByRows(f"the step returns {self.ops.ops[index].name}, sums over parts of the rows")
                if layout is Layout.ROWS and self.is_wide(tensor):
                    raise NotByRows(f"the step returns {self.ops.ops[index].name}, a value of its widest product")
                yield tensor, layout
