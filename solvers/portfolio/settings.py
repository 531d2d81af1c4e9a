"""The numbers that steer the default solver, and what each of them trades."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How the portfolio shares the time among its methods.

    Args, of exhaustive search:
        exhaustive_nodes: up to so many nodes it comes first; beyond, it is a loss of time.
        exhaustive_states: after which it gives up. More proves more graphs, and leaves less time for the other methods.
        exhaustive_share: of the time, at most.
        beyond_nodes, beyond_states: the same where no schedule in stages keeps within the budget: it is then the only
            proof there is, and a budget that tight leaves few states.

    Args, of the first schedule:
        first_share: of the time, at most, for the annealing that looks for it, which needs more on a busy machine.
        first_coolings: of that annealing, at most. More find one for tighter budgets, and leave less time for what
            follows.
        longer_share: the same where the first schedule ends the search. Less leaves tight budgets to methods that find
            none within seconds, more leaves no time for a proof that there is none.
        cooling_moves_per_node: of each of them. Fewer find no schedule for tight budgets, more find it later.

    Args, of free order:
        order_share: of the time, for an order of less peak. More leaves less for recomputations in the order chosen.
        compare_orders_share: of the time, at most, for each of two orders. An annealing that it cuts short has not
            cooled, and tells little.
        compared_moves_per_node: of the annealing that compares two orders. More makes a surer choice, and leaves less
            time for the search in the order chosen.

    Args, of the search in this process:
        alone_s: that it searches before workers start. A process takes seconds to start, which easy graphs need not
            wait for.

    Args, of the workers:
        least_workers: one anneals, and one looks for bounds.
        most_workers: each one more takes more memory, and gains less than the one before.
        max_threads: of branch and cut. More look at nodes of the tree that are soon closed anyway.
        least_race_s: with less time left a worker would hardly have started, or started again.
        first_moves_per_node: annealing of the worker for the bound, where no schedule is known to it. More delays
            bounds.
        patience_rounds: of annealing in vain, after which an exact relaxation takes its place. With fewer it may come
            too soon.
        return_s: before the end, at which a solver that does not report on its way has to return what it has found.
        successor_s: time that must be left for another contestant to take the place of one that has ended.
        alone_share: of the time without a schedule, after which the last resorts join.
        overrun_s: after its time a worker that has not returned is ended. Longer wastes time on one that hangs.
        least_task_s: time that a worker is given at least, however late it has started.
        exit_s: that a process may take to exit before it is killed.

    Args, of the least budget (`minimum_memory.py`):
        budget_share: of the time that is left, for each budget tried. More finds schedules for lower budgets, and tries
            fewer of them.
        least_budget_s: for each budget, at least.
    """

    exhaustive_nodes: int = 9
    exhaustive_states: int = 20_000
    exhaustive_share: float = 0.3
    beyond_nodes: int = 64
    beyond_states: int = 200_000

    first_share: float = 0.2
    first_coolings: int = 4
    longer_share: float = 0.5
    cooling_moves_per_node: int = 30

    order_share: float = 0.2
    compare_orders_share: float = 0.1
    compared_moves_per_node: int = 20

    alone_s: float = 0.5

    least_workers: int = 2
    most_workers: int = 4
    max_threads: int = 4
    least_race_s: float = 1.0
    first_moves_per_node: int = 20
    patience_rounds: int = 6
    return_s: float = 0.5
    successor_s: float = 5.0
    alone_share: float = 0.6
    overrun_s: float = 2.0
    least_task_s: float = 0.1
    exit_s: float = 0.05

    budget_share: float = 0.25
    least_budget_s: float = 0.05


SETTINGS = Settings()
