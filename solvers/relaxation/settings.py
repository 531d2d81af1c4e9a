"""The numbers that steer the block relaxation, and what each of them trades."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How the search by block relaxation proceeds.

    Args, of the annealing that gives schedules:
        anneal_share: of the time limit, for the annealing before the first relaxation. More gives better schedules to
            begin with and leaves less time for bounds.
        cooling_shares: of those moves and that time, for each cooling in turn. Short ones first end the search early
            on easy graphs.
        gentle_moves_per_node: annealing from the solution of a relaxation. More repairs worse solutions, and delays
            the next relaxation.
        gentle_share: of the time that is left, at most, for one such annealing.
        least_gentle_s: this annealing may always take so long.

    Args, of the gap that a mixed-integer program is solved to:
        first_gap_share: of the gap between incumbent and bound. Less solves each program further, and refines the
            blocks less often.
        exact_gap_share: the same where the search is `exact`: its programs are large, and it refines blocks sooner.
        least_gap_share: once the gap asked for is smaller than this share, there is nothing left to refine.
        enough_share: of the tolerance of the whole search. A smaller gap of one program would be of no use.
        tighten_ratio: by which the gap is divided, and the work multiplied, to solve the same model further.

    Args, of the work of CP-SAT on one program, in its deterministic time, which is about seconds:
        little_work: to begin with. More solves each program further, and refines the blocks less often.
        near_work: at least this much where the linear bound is very near a known cost, so that a proof is likely.
        much_work: at least this much from the first program on that stays open.
        stall_share: of the gap. A round that raises the bound by less doubles the work of the next.

    Args, of the blocks:
        cut_steps: cuts of blocks in one round, at most, once programs stay open. More raises the linear bound further,
            by programs that grow with each cut.
        inner_rows: memory rows inside blocks, at most, that are tried where many values are small.
        grow_share: of the time that is left, for cutting blocks in one round.
        shrink_share: of the time that is left, for joining blocks again where HiGHS follows. Fewer blocks give smaller
            search trees, and a lower linear bound.
        shrink_share_of_cpsat: the same where CP-SAT follows, which gains less by it.
        forgone_share: of what the linear bound lacks to the known cost, that joining blocks may give up.
        forgone_share_of_cpsat: the same where CP-SAT follows.
        first_kept_share: of the linear bound, that joining blocks keeps before any program has stayed open.
        strengthen_share: of the time that is left, for finding path cuts once.
        nearly_closed_share: the bound of whole programs is so far on the way from the linear bound to the incumbent
            that cutting blocks any further is not worthwhile.
        largest_part_share: of the nodes. Parts between cuts are solved apart only where each is smaller.

    Args, of the choice of the method for a program:
        many_columns: programs with more are left to HiGHS, which copes better with them than CP-SAT does.
        near_share: of a known cost. With a linear bound above it, an `exact` search uses branch and cut.
        very_near_share: of a known cost. With a linear bound above it, CP-SAT gets `near_work`.
        easy_rounds: in the first rounds HiGHS is tried before CP-SAT, as such programs often close at once.
        easy_columns: with at most so many columns HiGHS is always tried first.
        easy_nodes: of the search tree, after which HiGHS gives up on such a program.
        easy_share: of the time that is left, after which it gives up.
        least_easy_s: HiGHS may always take so long.
        presolve_rows: linear programs with more rows are not presolved, which would take longer than solving them.

    Args, of cutting and joining blocks (`growth.py`, `memory.py`):
        notable_rise_share: of what the linear bound is below the known cost. A smaller rise counts as none.
        patience_steps: cuts without a notable rise, after which cutting ends.
        max_places: cuts at once where blocks are cut everywhere. More takes fewer steps and places them less well.
        apart_stages: cuts at once are more than this many stages apart, as neighbours would serve the same need.
        max_event_rows: event memory rows that are added in one step.
        over_budget_ratio: memory above the budget by less than this is taken for rounding.
        join_one_in: of the blocks there are, one in so many is joined to the one before at the first attempt. Each
            success doubles the number, each failure halves it.
        least_recomputed_share: of a node. Smaller shares of it in a fractional solution are not looked at.

    Args, of path cuts (`cuts.py`):
        least_violation: cuts that are violated by less are left out: they are many, and raise the bound little.
        max_cuts: of one round. More raises the bound in fewer rounds, by larger linear programs.
        max_cut_rounds: linear programs solved to find cuts for the same blocks, at most.
        cut_rise_ratio: a round that raises the bound by a smaller factor is the last.

    Args, of targets (`targets.py`), in shares of what the linear bound lacks to the known cost:
        first_target_share: the first target. A higher one is a better bound at once, and takes longer to prove.
        target_step_share: from one target to the next.

    Args, of branch and cut (`branching.py`):
        max_trials: variables tried at a node of the tree. More finds better ones to branch on, at the cost of as many
            linear programs.
        max_first_trials: the same at the root, where a bad choice costs most.
        trial_iterations: of the simplex method for one trial. More predicts the gain better.
        reliable_trials: a variable tried this often on both sides is not tried again.
        candidates_per_trial: variables looked at for each that may be tried; the others have been tried often enough.
        down_gain_share: what rounding down is guessed to gain before any trial, as a share of rounding up.
        max_node_cuts: path cuts added at once at a node of the tree.
        node_cut_rounds: of finding cuts at a node, at most. More raises its bound, and makes the program larger.
        node_rise_share: of what the bound lacks. A round of cuts that raises it by less is the last.
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
