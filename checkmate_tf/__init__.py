"""Train Keras models within a memory budget.

Editors and type checkers read the imports under TYPE_CHECKING. At run time, a name is imported when it is first used,
so importing this package never imports TensorFlow.
"""

from typing import TYPE_CHECKING

_HOME = {
    "rematerialize": "training.rematerialize",
    "restore": "training.rematerialize",
    "rewrite_function": "training.functions",
    "RewrittenFunction": "training.functions",
    "estimate": "training.estimate",
    "Estimate": "training.estimate",
    "LayerActivations": "training.estimate",
    "MemoryReport": "training.memory_report",
    "pareto": "tradeoff.pareto",
    "Pareto": "reports.budget_curve",
    "ParetoPoint": "reports.budget_curve",
    "best_batch": "max_batch.best_batch",
    "BestBatch": "max_batch.best_batch",
    "BatchTrial": "reports.batches",
    "max_batch_size": "max_batch.max_batch_size",
    "MaxBatch": "max_batch.result",
    "Trial": "max_batch.search",
    "Axis": "max_batch.sized_step",
    "Options": "planning.options",
    "Plan": "reports.plan",
    "Chunks": "executors.step",
    "load_plan": "reports.plan",
    "ResidentBytes": "executors.step",
    "OffloadedValue": "reports.records",
    "PeakValue": "reports.records",
    "PatternCost": "planning.pattern_costs",
    "Recomputation": "reports.records",
    "UpdateDifference": "measurement.difference",
    "CostModel": "profiling.costs",
    "load_graph": "serialization",
    "save_graph": "serialization",
    "load_schedule": "serialization",
    "load_solution": "solution_json",
    "save_solution": "solution_json",
    "Graph": "graph",
    "Node": "graph",
    "Value": "graph",
    "Schedule": "schedule",
    "simulate": "simulator",
    "Simulation": "simulator",
    "solve": "solvers",
    "Scheduled": "solvers",
    "Solution": "solvers",
    "Solver": "solvers",
    "Status": "solvers",
    "Update": "solvers",
    "CheckmateError": "errors",
    "BatchError": "errors",
    "BudgetError": "errors",
    "EmissionError": "errors",
    "GraphError": "errors",
    "InfeasibleBudgetError": "errors",
    "OffloadError": "errors",
    "PatternError": "errors",
    "PlanError": "errors",
    "ProfileError": "errors",
    "ScheduleError": "errors",
    "SearchInterrupt": "errors",
    "SolverError": "errors",
    "UnsupportedModelError": "errors",
}

if TYPE_CHECKING:
    from checkmate_tf.errors import BatchError as BatchError
    from checkmate_tf.errors import BudgetError as BudgetError
    from checkmate_tf.errors import CheckmateError as CheckmateError
    from checkmate_tf.errors import EmissionError as EmissionError
    from checkmate_tf.errors import GraphError as GraphError
    from checkmate_tf.errors import InfeasibleBudgetError as InfeasibleBudgetError
    from checkmate_tf.errors import OffloadError as OffloadError
    from checkmate_tf.errors import PatternError as PatternError
    from checkmate_tf.errors import PlanError as PlanError
    from checkmate_tf.errors import ProfileError as ProfileError
    from checkmate_tf.errors import ScheduleError as ScheduleError
    from checkmate_tf.errors import SearchInterrupt as SearchInterrupt
    from checkmate_tf.errors import SolverError as SolverError
    from checkmate_tf.errors import UnsupportedModelError as UnsupportedModelError
    from checkmate_tf.executors.step import Chunks as Chunks
    from checkmate_tf.executors.step import ResidentBytes as ResidentBytes
    from checkmate_tf.graph import Graph as Graph
    from checkmate_tf.graph import Node as Node
    from checkmate_tf.graph import Value as Value
    from checkmate_tf.max_batch.best_batch import BestBatch as BestBatch
    from checkmate_tf.max_batch.best_batch import best_batch as best_batch
    from checkmate_tf.max_batch.max_batch_size import max_batch_size as max_batch_size
    from checkmate_tf.max_batch.result import MaxBatch as MaxBatch
    from checkmate_tf.max_batch.search import Trial as Trial
    from checkmate_tf.max_batch.sized_step import Axis as Axis
    from checkmate_tf.measurement.difference import UpdateDifference as UpdateDifference
    from checkmate_tf.planning.options import Options as Options
    from checkmate_tf.planning.pattern_costs import PatternCost as PatternCost
    from checkmate_tf.profiling.costs import CostModel as CostModel
    from checkmate_tf.reports.batches import BatchTrial as BatchTrial
    from checkmate_tf.reports.budget_curve import Pareto as Pareto
    from checkmate_tf.reports.budget_curve import ParetoPoint as ParetoPoint
    from checkmate_tf.reports.plan import Plan as Plan
    from checkmate_tf.reports.plan import load_plan as load_plan
    from checkmate_tf.reports.records import OffloadedValue as OffloadedValue
    from checkmate_tf.reports.records import PeakValue as PeakValue
    from checkmate_tf.reports.records import Recomputation as Recomputation
    from checkmate_tf.schedule import Schedule as Schedule
    from checkmate_tf.serialization import load_graph as load_graph
    from checkmate_tf.serialization import load_schedule as load_schedule
    from checkmate_tf.serialization import save_graph as save_graph
    from checkmate_tf.simulator import Simulation as Simulation
    from checkmate_tf.simulator import simulate as simulate
    from checkmate_tf.solution_json import load_solution as load_solution
    from checkmate_tf.solution_json import save_solution as save_solution
    from checkmate_tf.solvers import Scheduled as Scheduled
    from checkmate_tf.solvers import Solution as Solution
    from checkmate_tf.solvers import Solver as Solver
    from checkmate_tf.solvers import Status as Status
    from checkmate_tf.solvers import Update as Update
    from checkmate_tf.solvers import solve as solve
    from checkmate_tf.tradeoff.pareto import pareto as pareto
    from checkmate_tf.training.estimate import Estimate as Estimate
    from checkmate_tf.training.estimate import LayerActivations as LayerActivations
    from checkmate_tf.training.estimate import estimate as estimate
    from checkmate_tf.training.functions import RewrittenFunction as RewrittenFunction
    from checkmate_tf.training.functions import rewrite_function as rewrite_function
    from checkmate_tf.training.memory_report import MemoryReport as MemoryReport
    from checkmate_tf.training.rematerialize import rematerialize as rematerialize
    from checkmate_tf.training.rematerialize import restore as restore

    __version__: str
else:
    __all__ = ["__version__", *sorted(_HOME)]

    def __getattr__(name):
        from importlib import import_module, metadata

        if name == "__version__":
            return metadata.version(__name__)
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name not in (f"{__name__}.profiling", f"{__name__}.solvers"):
                raise
            raise ModuleNotFoundError(
                f"Python imports checkmate_tf from {__file__}, a clone that holds only a part of the package: run it "
                "in another directory, or pip install -e . in the clone",
                name=error.name,
            ) from error

    def __dir__():
        return __all__
