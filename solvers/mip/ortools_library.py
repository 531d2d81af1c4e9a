"""Imports OR-tools so that it runs in one process with TensorFlow.

Both contain abseil and protobuf. If TensorFlow is loaded first, OR-tools 9.15 binds to the copies in TensorFlow 2.21,
and CP-SAT crashes at its start. It runs if it binds to its own copies (RTLD_DEEPBIND, if the system has it). OR-tools
9.12 runs, too.
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
