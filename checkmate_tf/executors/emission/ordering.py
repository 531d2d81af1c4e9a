"""Keeps a rewritten step in the order of its schedule: this is the interface that every ordering policy has.

TensorFlow and XLA run an operation when its inputs exist, so a copy would run at the start of the step. A policy makes
it wait, by data that it reads or by a control edge.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

from tensorflow.core.framework.node_def_pb2 import NodeDef

# "chain": every position waits for all before it: memory is as the simulator says. "overlap": one waits for those
# without which memory might pass the schedule's peak, whatever runs beside it.
Ordering = Literal["chain", "overlap"]


class OrderingPolicy(ABC):
    """Makes the operations of each position of one schedule wait for what has to come before them.

    For each position the writer calls `begin_position`, then for each operation there `tie_inputs` and `hold`, then
    `end_position`; at the end `finish`.
    """

    @abstractmethod
    def begin_position(self, position: int) -> Mapping[str, str]:
        """Prepares a position; what its node reads in the place of some tensors, so that it waits."""

    def tie_inputs(self, op: int, name: str, inputs: list[str]) -> list[str]:
        """Returns the inputs of the copy `name` of an op, some of them through what waits."""
        return inputs

    def hold(self, op: int, definition: NodeDef) -> None:
        """Changes the definition of a copy of an op, not yet written, so that it waits."""
        return

    @abstractmethod
    def end_position(self, position: int, fresh: Mapping[int, str]) -> None:
        """Notes that a position is written; `fresh` holds the names of its copies, by op."""

    def finish(self) -> None:
        """Adds what can be told only when all positions are written."""
        return
