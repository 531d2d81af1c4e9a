"""Train Keras models within a memory budget.

The public names are resolved lazily: importing this package never imports TensorFlow.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "rematerialize": "training.rematerialize",
    "restore": "training.rematerialize",
    "rewrite_function": "training.functions",
    "estimate": "training.estimate",
    "MemoryReport": "training.memory_report",
    "pareto": "tradeoff.pareto",
    "best_batch": "max_batch.best_batch",
    "max_batch_size": "max_batch.max_batch_size",
    "Plan": "planning.plan",
    "load_graph": "serialization",
    "save_graph": "serialization",
    "load_schedule": "serialization",
    "save_solution": "solution_json",
    "Graph": "graph",
    "Node": "graph",
    "Value": "graph",
    "Schedule": "schedule",
    "simulate": "simulator",
    "solve": "solvers",
    "Solution": "solvers",
    "Status": "solvers",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
