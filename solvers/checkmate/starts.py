"""Finds first schedules for the exact methods with quick solvers."""

from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate
from checkmate_tf.solvers.annealing.solver import StageAnnealing
from checkmate_tf.solvers.base import Solver
from checkmate_tf.solvers.checkmate.settings import SETTINGS
from checkmate_tf.solvers.checkpointing.linearized_greedy import LinearizedGreedy
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.search import Search

# The first is rarely good but never slow; the second comes near the optimum if it has the time.
QUICK_SOLVERS: tuple[Solver, ...] = (
    LinearizedGreedy(num_sizes=SETTINGS.start_checkpoint_sizes),
    StageAnnealing(moves_per_node=SETTINGS.start_moves_per_node),
)


def best_start(
    problem: Problem, solvers: tuple[Solver, ...], given: Schedule | None, *, time_limit_s: float, seed: int
) -> Schedule | None:
    """Returns the cheapest schedule within the budget among `given`, retaining everything, and those of `solvers`.

    The solvers get equal shares of the time. None is asked once a schedule without repeats is known.
    """
    candidates = [make_retain_all_schedule(problem.graph)]
    if given is not None:
        candidates.append(given)
    for solver in solvers:
        if _cheapest(problem, candidates[:1]) is not None:
            break
        found = solver.search(Search(problem, time_limit_s / len(solvers), seed))
        if found.schedule is not None:
            candidates.append(found.schedule)
    return _cheapest(problem, candidates)


def _cheapest(problem: Problem, candidates: list[Schedule]) -> Schedule | None:
    simulated = [(simulate(problem.graph, schedule), schedule) for schedule in candidates]
    fitting = [
        (result.cost, index) for index, (result, _) in enumerate(simulated) if result.peak_bytes <= problem.budget_bytes
    ]
    return simulated[min(fitting)[1]][1] if fitting else None
