"""Defines the interface of ordering policies, which keep a rewritten step in the order of its schedule.

TensorFlow and XLA run an operation as soon as its inputs exist, so a copy would run at the start of the step. A policy
makes it wait, by data that it reads or by a control edge.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

from tensorflow.core.framework.node_def_pb2 import NodeDef

# With "chain", every position waits for all earlier ones, so that memory is as simulated. With "overlap", a position
# waits only for those whose end keeps memory within the schedule's peak, whatever runs in parallel.
Ordering = Literal["chain", "overlap"]


class OrderingPolicy(ABC):
    """Makes the operations of each position of a schedule wait for the operations that must come before them.

    For each position, the writer calls `begin_position`, then `tie_inputs` and `hold` for each operation, then
    `end_position`. At the end, it calls `finish`.
    """

    @abstractmethod
    def begin_position(self, position: int) -> Mapping[str, str]:
        """Prepares a position. Returns the names that its node reads instead of some tensors, so that it waits."""

    def tie_inputs(self, op: int, name: str, inputs: list[str]) -> list[str]:
        """Returns the inputs of the copy `name` of an op, some of them replaced by views that wait."""
        return inputs

    def hold(self, op: int, definition: NodeDef) -> None:
        """Changes the definition of a copy of an op before it is written, so that it waits."""
        return

    @abstractmethod
    def end_position(self, position: int, fresh: Mapping[int, str]) -> None:
        """Ends a position whose operations are written; `fresh` contains the names of its copies, by op."""

    def finish(self) -> None:
        """Adds waits that are known only after all positions are written."""
        return
