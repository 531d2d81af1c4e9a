"""The numbers that steer the default solver, and the trade-off behind each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Divides the time of the portfolio among its methods.

    Args, of exhaustive search:
        exhaustive_nodes: it comes first for graphs with at most so many nodes; beyond, it would waste time.
        exhaustive_states: it gives up after so many. More proves more graphs, and leaves less time for the other
            methods.
        exhaustive_share: largest share of the time.
        beyond_nodes, beyond_states: the same if no schedule in stages stays within the budget. It is then the only
            proof there is, and such a tight budget leaves few states.

    Args, of the first schedule:
        first_share: largest share of the time for the annealing that searches for it, which needs more on a busy
            machine.
        first_coolings: largest number of coolings of that annealing. More find one for tighter budgets, and leave less
            time for the rest.
        longer_share: the same if the first schedule ends the search. Less leaves tight budgets to methods that find
            none within seconds; more leaves no time for a proof that there is none.
        cooling_moves_per_node: moves of each of them. Fewer find no schedule for tight budgets; more find it later.

    Args, of free order:
        order_share: share of the time for an order of less peak. More leaves less for recomputations in the chosen
            order.
        compare_orders_share: largest share of the time for each of two orders. An annealing that ends early has not
            cooled, and shows little.
        compared_moves_per_node: moves of the annealing that compares two orders. More makes the choice more reliable,
            and leaves less time for the search in the chosen order.

    Args, of the search in this process:
        alone_s: time of its search before workers start. A process takes seconds to start, for which easy graphs need
            not wait.

    Args, of the workers:
        least_workers: one anneals, and one looks for bounds.
        most_workers: each further one takes more memory, and gains less than the one before.
        max_threads: threads of branch and cut. More examine nodes of the tree that are soon closed anyway.
        least_race_s: with less time left, a worker would hardly have started, or restarted.
        first_moves_per_node: annealing of the worker for the bound, if it knows no schedule. More delays bounds.
        patience_rounds: rounds of annealing without a better schedule, after which an exact relaxation replaces it.
            With fewer, it may come too soon.
        return_s: time before the end at which a solver that reports no improvements has to return its result.
        successor_s: time that must be left for another contestant to replace one that has ended.
        alone_share: share of the time without a schedule, after which the last resorts join.
        overrun_s: a worker that has not returned this long after its time is stopped. Longer wastes time on one that
            hangs.
        least_task_s: least time for a worker, however late it has started.
        exit_s: time that a process may take to exit before it is killed.

    Args, of the least budget (`minimum_memory.py`):
        budget_share: share of the remaining time for each budget tried. More finds schedules for lower budgets, and
            tries fewer of them.
        least_budget_s: least time for each budget.
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
