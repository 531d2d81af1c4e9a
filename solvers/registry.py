"""Lists every solver by its name, with its class. Adding a solver takes a module and a line here."""

from checkmate_tf.errors import SolverError, quote
from checkmate_tf.solvers.base import Solver
from checkmate_tf.solvers.loading import load

# name -> "module of checkmate_tf.solvers:class"; a module is imported when its solver is first used.
_CLASSES = {
    "retain_all": "checkpointing.retain_all:RetainAll",
    "twremat": "twremat.solver:Twremat",
    "xla_greedy": "xla_greedy:XlaGreedy",
    "exhaustive": "exhaustive:Exhaustive",
    "stage_annealing": "annealing.solver:StageAnnealing",
    "block_relaxation": "relaxation.solver:BlockRelaxation",
    "auto": "portfolio.auto:Auto",
    "checkmate_milp": "checkmate.milp:CheckmateMilp",
    "chen_sqrt": "checkpointing.chen_sqrt:ChenSqrt",
    "chen_greedy": "checkpointing.chen_greedy:ChenGreedy",
    "ap_sqrt": "checkpointing.ap_sqrt:ApSqrt",
    "ap_greedy": "checkpointing.ap_greedy:ApGreedy",
    "linearized_sqrt": "checkpointing.linearized_sqrt:LinearizedSqrt",
    "linearized_greedy": "checkpointing.linearized_greedy:LinearizedGreedy",
    "griewank": "checkpointing.griewank:Griewank",
    "checkmate_lp": "checkmate.lp:CheckmateLp",
    "moccasin": "moccasin.solver:Moccasin",
    "fastsa": "fastsa.solver:Fastsa",
}
_PACKAGE = __name__.rpartition(".")[0]

SOLVER_NAMES = tuple(_CLASSES)


def get_solver(name: str) -> Solver:
    """Returns the solver of that name with its default options. Raises SolverError for an unknown name."""
    if not isinstance(name, str) or name not in _CLASSES:
        raise SolverError(f"there is no solver {quote(name)}; choose one of {', '.join(SOLVER_NAMES)}")
    module, _, class_name = _CLASSES[name].partition(":")
    return getattr(load(module), class_name)()


def choose_solver(solver: str | Solver) -> Solver:
    """Returns the solver itself, or the one of that name. Raises SolverError for anything else."""
    if isinstance(solver, str):
        return get_solver(solver)
    if not isinstance(solver, Solver):
        raise SolverError(f"solver is {quote(solver)}; it must be a name, or a solver such as Auto()")
    return solver


def solver_name(solver: Solver) -> str:
    """Returns the name of a solver: the registered one, or that of its class."""
    place = f"{type(solver).__module__.removeprefix(f'{_PACKAGE}.')}:{type(solver).__name__}"
    return next((name for name, where in _CLASSES.items() if where == place), type(solver).__name__)
