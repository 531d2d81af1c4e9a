"""OR-tools, imported so that it runs in one process with TensorFlow.

Both carry abseil and protobuf. Where TensorFlow is loaded first, OR-tools 9.15 binds to TensorFlow 2.21's copies, and
CP-SAT crashes as it starts; bound to its own (RTLD_DEEPBIND, where the system has it) it runs. So does OR-tools 9.12.
"""

import os
import sys

_flags = sys.getdlopenflags()
sys.setdlopenflags(_flags | getattr(os, "RTLD_DEEPBIND", 0))
try:
    from ortools.pdlp import solve_log_pb2, solvers_pb2
    from ortools.pdlp.python import pdlp
    from ortools.sat.python import cp_model
finally:
    sys.setdlopenflags(_flags)

__all__ = ["cp_model", "pdlp", "solve_log_pb2", "solvers_pb2"]
