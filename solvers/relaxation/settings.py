"""The numbers that steer the block relaxation, and the trade-off behind each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Steers the search by block relaxation.

    Args, of the annealing that finds schedules:
        anneal_share: share of the time limit for the annealing before the first relaxation. More finds better schedules
            to begin with, and leaves less time for bounds.
        cooling_shares: shares of those moves and that time, for each cooling in turn. Short ones first end the search
            early on easy graphs.
        gentle_moves_per_node: moves of annealing from the solution of a relaxation. More repairs worse solutions, and
            delays the next relaxation.
        gentle_share: largest share of the remaining time for one such annealing.
        least_gentle_s: such an annealing may always take so long.

    Args, of the gap to which a mixed-integer program is solved:
        first_gap_share: share of the gap between incumbent and bound. Less solves each program further, and refines the
            blocks less often.
        exact_gap_share: the same if the search is `exact`. Its programs are large, and it refines blocks sooner.
        least_gap_share: once the requested gap is smaller than this share, there is nothing left to refine.
        enough_share: share of the tolerance of the whole search. A smaller gap of one program would be useless.
        tighten_ratio: divides the gap, and multiplies the work, to solve the same model further.

    Args, of the work of CP-SAT on one program, in its deterministic time, roughly in seconds:
        little_work: work of the first programs. More solves each program further, and refines the blocks less often.
        near_work: least work if the linear bound is very close to a known cost, so that a proof is likely.
        much_work: least work from the first program on that stays open.
        stall_share: share of the gap. A round that raises the bound by less doubles the work of the next.

    Args, of the blocks:
        cut_steps: largest number of cuts in one round, once programs stay open. More raises the linear bound further,
            with programs that grow with each cut.
        inner_rows: largest number of memory rows inside blocks that are tried if many values are small.
        grow_share: share of the remaining time for cutting blocks in one round.
        shrink_share: share of the remaining time for joining blocks again before HiGHS. Fewer blocks make smaller
            search trees, and a lower linear bound.
        shrink_share_of_cpsat: the same before CP-SAT, which gains less by it.
        forgone_share: share of the difference between the linear bound and the known cost that joining blocks may give
            up.
        forgone_share_of_cpsat: the same before CP-SAT.
        first_kept_share: share of the linear bound that joining blocks keeps before any program has stayed open.
        strengthen_share: share of the remaining time for finding path cuts once.
        nearly_closed_share: share of the way from the linear bound to the incumbent. Once the bound of whole programs
            has come so far, cutting blocks any further is not worthwhile.
        largest_part_share: share of the nodes. Parts between cuts are solved separately only if each is smaller.

    Args, of the choice of the method for a program:
        many_columns: programs with more are left to HiGHS, which handles them better than CP-SAT does.
        near_share: share of a known cost. With a linear bound above it, an `exact` search uses branch and cut.
        very_near_share: share of a known cost. With a linear bound above it, CP-SAT gets `near_work`.
        easy_rounds: in the first rounds, HiGHS is tried before CP-SAT, because such programs often close at once.
        easy_columns: with at most so many columns, HiGHS is always tried first.
        easy_nodes: size of the search tree after which HiGHS gives up on such a program.
        easy_share: share of the remaining time after which it gives up.
        least_easy_s: HiGHS may always take so long.
        presolve_rows: linear programs with more rows are not presolved, which would take longer than solving them.

    Args, of cutting and joining blocks (`growth.py`, `memory.py`):
        notable_rise_share: share of the difference between the linear bound and the known cost. A smaller rise counts
            as none.
        patience_steps: number of cuts without a notable rise, after which cutting ends.
        max_places: number of cuts at once if blocks are cut everywhere. More takes fewer steps and places them less
            well.
        apart_stages: cuts at once are more than this many stages apart, because neighbours would serve the same need.
        max_event_rows: number of event memory rows that are added in one step.
        over_budget_ratio: a smaller excess over the budget counts as rounding.
        join_one_in: at the first attempt, one in so many blocks is joined to the one before. Each success doubles the
            number, each failure halves it.
        least_recomputed_share: share of a node. Smaller shares of it in a fractional solution are ignored.

    Args, of path cuts (`cuts.py`):
        least_violation: cuts that are violated by less are left out, because they are many, and raise the bound little.
        max_cuts: number of cuts in one round. More raises the bound in fewer rounds, with larger linear programs.
        max_cut_rounds: largest number of linear programs solved to find cuts for the same blocks.
        cut_rise_ratio: a round that raises the bound by a smaller factor is the last.

    Args, of targets (`targets.py`), in shares of the difference between the linear bound and the known cost:
        first_target_share: the first target. A higher one is a better bound at once, and takes longer to prove.
        target_step_share: from one target to the next.

    Args, of branch and cut (`branching.py`):
        max_trials: number of variables tried at a node of the tree. More finds better ones to branch on, at the cost of
            as many linear programs.
        max_first_trials: the same at the root, where a bad choice costs most.
        trial_iterations: iterations of the simplex method for one trial. More predicts the gain better.
        reliable_trials: a variable tried this often on both sides is not tried again.
        candidates_per_trial: number of variables examined for each that may be tried; the others have been tried often
            enough.
        down_gain_share: expected gain of rounding down before any trial, relative to rounding up.
        max_node_cuts: number of path cuts added at once at a node of the tree.
        node_cut_rounds: largest number of rounds of finding cuts at a node. More raises its bound, and enlarges the
            program.
        node_rise_share: share of the difference to the known cost. A round of cuts that raises the bound by less is the
            last.
    """

    anneal_share: float = 0.4
    cooling_shares: tuple[float, ...] = (0.1, 0.3, 0.6)
    gentle_moves_per_node: int = 120
    gentle_share: float = 0.02
    least_gentle_s: float = 0.2

    first_gap_share: float = 0.15
    exact_gap_share: float = 0.5
    least_gap_share: float = 1e-4
    enough_share: float = 0.5
    tighten_ratio: int = 4

    little_work: float = 3.0
    near_work: float = 10.0
    much_work: float = 60.0
    stall_share: float = 0.1

    cut_steps: int = 30
    inner_rows: int = 100
    grow_share: float = 0.25
    shrink_share: float = 0.15
    shrink_share_of_cpsat: float = 0.05
    forgone_share: float = 0.06
    forgone_share_of_cpsat: float = 0.02
    first_kept_share: float = 0.98
    strengthen_share: float = 0.1
    nearly_closed_share: float = 0.5
    largest_part_share: float = 0.9

    many_columns: int = 40_000
    near_share: float = 0.75
    very_near_share: float = 0.95
    easy_rounds: int = 2
    easy_columns: int = 1000
    easy_nodes: int = 150
    easy_share: float = 0.1
    least_easy_s: float = 1.0
    presolve_rows: int = 20_000

    notable_rise_share: float = 0.02
    patience_steps: int = 4
    max_places: int = 3
    apart_stages: int = 2
    max_event_rows: int = 8
    over_budget_ratio: float = 1.001
    join_one_in: int = 4
    least_recomputed_share: float = 0.05

    least_violation: float = 0.02
    max_cuts: int = 5000
    max_cut_rounds: int = 12
    cut_rise_ratio: float = 1.0005

    first_target_share: float = 0.15
    target_step_share: float = 0.07

    max_trials: int = 8
    max_first_trials: int = 40
    trial_iterations: int = 50
    reliable_trials: int = 3
    candidates_per_trial: int = 4
    down_gain_share: float = 0.5
    max_node_cuts: int = 300
    node_cut_rounds: int = 3
    node_rise_share: float = 0.002


SETTINGS = Settings()
