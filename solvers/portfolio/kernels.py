"""Lists the code that solvers compile once after an installation, for callers that prefer to wait for it."""

import math

from checkmate_tf.solvers.annealing.annealer import MOVES as STAGE_MOVES
from checkmate_tf.solvers.fastsa.solver import MOVES as SEQUENCE_MOVES
from checkmate_tf.solvers.ordering.topological_order import BEAM
from checkmate_tf.solvers.pruning import KERNEL as PRUNING

KERNELS = (STAGE_MOVES, PRUNING, BEAM, SEQUENCE_MOVES)


def are_compiled() -> bool:
    """Returns whether a search that begins now finds all of it compiled."""
    return all(kernel.is_compiled() for kernel in KERNELS)


def compile_all() -> None:
    """Waits until all of it is compiled, which takes half a minute of an idle core."""
    for kernel in KERNELS:
        kernel.compile_within(math.inf)
