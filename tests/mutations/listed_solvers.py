"""The mutations of the solvers: one or two lines of each that its result hangs on."""

from tests.mutations.mutation import Mutation


def _solver(file: str, old: str, new: str, why: str, *tests: str) -> Mutation:
    """Tests are named as "file::test" in tests/solvers."""
    paths = tuple(
        f"tests/solvers/test_{test.replace('::', '.py::test_', 1)}" if "::" in test else f"tests/solvers/test_{test}.py"
        for test in tests
    )
    return Mutation(f"checkmate_tf/solvers/{file}.py", old, new, why, paths)


SOLVER_MUTATIONS: tuple[Mutation, ...] = (
    # What all share
    _solver(
        "solving",
        "proved = best.simulation.cost <= bound and bound_order in",
        "proved = best.simulation.cost <= bound or bound_order in",
        "a schedule would be called optimal that is not",
        "contract::optimal_is_what_a_bound_of_the_same_order_proves",
    ),
    _solver(
        "incumbent",
        "if not is_within or (self.cost is not None",
        "if (self.cost is not None",
        "a schedule above the budget would be kept as the best",
        "portfolio",
        "moccasin::every_start_ends_at_the_same_optimum",
    ),
    _solver(
        "stages",
        "begins = held[1:] & ~held[:-1] & later[:-1]",
        "begins = held[1:] & later[:-1]",
        "what is retained already would be computed again",
        "checkmate_lp::recompute_is_the_cheapest_for_what_is_retained",
    ),
    _solver(
        "presolve",
        "if not node.recomputable or node.cost >= known_extra_cost:",
        "if not node.recomputable or node.cost >= 0:",
        "a graph would be cut where its value is worth computing again",
        "presolve",
    ),
    _solver(
        "pruning",
        "most = max(budget_bytes, int(memory.max()))",
        "most = 2 * max(budget_bytes, int(memory.max()))",
        "pruning would exceed the budget",
        "twremat::pruning_keeps_the_budget_and_never_costs_more",
    ),
    # exhaustive
    _solver(
        "exhaustive",
        "if needed <= self.budget_bytes:",
        "if needed < self.budget_bytes:",
        "the oracle would miss schedules that just fit",
        "exhaustive",
    ),
    _solver(
        "exhaustive",
        "return range(last + 1, frontier + 1) if frontier < num_nodes else range(0)",
        "return range(frontier + 1) if frontier < num_nodes else range(0)",
        "it would take more for stages than stages are",
        "exhaustive",
    ),
    # checkpointing
    _solver(
        "checkpointing/policy",
        "simulation.cost < best[0]):",
        "simulation.cost > best[0]):",
        "the dearest of the schedules would be given",
        "baselines",
    ),
    _solver(
        "checkpointing/policy",
        "index = bisect_right(bytes_until, bytes_until[index] + segment_bytes, lo=index + 1)",
        "index = bisect_right(bytes_until, segment_bytes, lo=index + 1)",
        "segments after the first would have one layer",
        "baselines",
    ),
    _solver(
        "checkpointing/griewank",
        "key=lambda m: m + repeated_steps(num_steps - m, num_snapshots - 1) + repeated_steps(m, num_snapshots),",
        "key=lambda m: m + repeated_steps(num_steps - m, num_snapshots) + repeated_steps(m, num_snapshots),",
        "REVOLVE would advance too far before a snapshot",
        "baselines",
    ),
    # xla_greedy
    _solver(
        "xla_greedy",
        "reduction = sum(self.sizes[value] for value in dropped) - held",
        "reduction = sum(self.sizes[value] for value in dropped)",
        "what must be held for a recomputation would not count",
        "xla_greedy",
    ),
    # twremat
    _solver(
        "twremat/solver",
        "if separator.num_bags <= self.recursion_limit or",
        "if separator.num_bags < self.recursion_limit or",
        "k bags would be recursed into",
        "twremat::no_recursion_is_no_rematerialization",
    ),
    _solver(
        "twremat/solver",
        "if graph.nodes[node].recomputable or node not in computed:",
        "if graph.nodes[node].recomputable or node in computed:",
        "what may run once only would be left out, or run again",
        "twremat::every_schedule_of_the_family_is_valid",
    ),
    _solver(
        "twremat/tree_decomposition",
        "largest[bag] = max(largest[bag], len(visited) - size[bag])",
        "largest[bag] = max(largest[bag], size[bag])",
        "separators would leave more than half of the bags together",
        "tree_decomposition",
    ),
    # ordering
    _solver(
        "ordering/topological_order",
        "return replace(found, peak_lower_bound_bytes=found.peak_bytes)",
        "return replace(found, peak_lower_bound_bytes=found.peak_bytes + 1)",
        "an order's peak would be proved to be more than it is",
        "topological_order::is_the_least_peak_of_all_orders",
    ),
    _solver(
        "ordering/downset_beam",
        "kept = np.sort(np.argpartition(children.live[:found], width - 1)[:width])",
        "kept = np.sort(np.argpartition(-children.live[:found], width - 1)[:width])",
        "the beam would keep the downsets that retain most",
        "topological_order",
    ),
    # checkmate_milp
    _solver(
        "checkmate/rows",
        "        (row[value[edge]], freed[edge], 1.0),\n",
        "",
        "what is freed would be there in the next stage",
        "checkmate_milp::equals_the_oracle_where_budgets_are_tight",
    ),
    _solver(
        "checkmate/rows",
        "np.full(len(index), -np.inf), most - 1, (row[index], freed[index], most)",
        "np.full(len(index), -np.inf), most, (row[index], freed[index], most - 1)",
        "the published program would free what is read later",
        "checkmate_milp::equals_the_oracle_where_budgets_are_tight",
    ),
    _solver(
        "checkmate/stage_space",
        "(np.arange(num_nodes) < stage) & (stage <= needed_node)",
        "(np.arange(num_nodes) < stage) & (stage < needed_node)",
        "the last recomputation that something reads would be presolved away",
        "checkmate_milp::equals_the_oracle_where_budgets_are_tight",
    ),
    _solver(
        "checkmate/milp",
        "exceeded[np.unique(stage[over])] = True",
        "exceeded[np.unique(stage[over])] = False",
        "budget rows that a solution breaks would never be added",
        "checkmate_milp::equals_the_oracle_where_budgets_are_tight",
    ),
    # checkmate_lp
    _solver(
        "checkmate/backends",
        "np.minimum(reduced * model.lower, reduced * upper).sum()",
        "np.maximum(reduced * model.lower, reduced * upper).sum()",
        "a bound would be claimed that no dual point proves",
        "checkmate_lp::any_duals_give_a_valid_bound",
    ),
    _solver(
        "checkmate/lp",
        "int((1 - allowance) * problem.budget_bytes)",
        "int((1 + allowance) * problem.budget_bytes)",
        "the relaxation would have an allowance above the budget",
        "checkmate_lp",
    ),
    _solver(
        "checkmate/milp",
        "for schedule, result in simulated if result.peak_bytes <= problem.budget_bytes]",
        "for schedule, result in simulated]",
        "a rounding above the budget would be returned",
        "checkmate_lp::no_rounding_exceeds_the_budget_or_beats_its_bound",
    ),
    # moccasin
    _solver(
        "moccasin/builder",
        "enforce(self.model.add(copy.start + (0 if shared else 1) <= reader.start), literal)",
        "enforce(self.model.add(copy.start + (0 if shared else 1) <= reader.start + 2), literal)",
        "a node would run before what it reads",
        "moccasin::the_papers_model_finds_the_best_schedule_of_two_computations_in_both_orders",
        "moccasin::equal_to_exhaustive_search_in_both_orders",
    ),
    _solver(
        "moccasin/builder",
        "times += [copy.start + shift, copy.ends[value] + 1]",
        "times += [copy.start + shift, copy.ends[value] + 2]",
        "a value could be read after it is freed, with the reservoir",
        "moccasin::the_papers_model_finds_the_best_schedule_of_two_computations_in_both_orders",
    ),
    _solver(
        "moccasin/solver",
        "            self._raise(min(answer.objective_bound, beyond))\n",
        "            self._raise(answer.objective_bound)\n",
        "the optimum of two computations a node would be called that of any number",
        "moccasin::what_two_computations_can_do_is_no_bound_on_three",
    ),
    _solver(
        "moccasin/rows",
        "model.add(sum(terms) >= need)",
        "model.add(sum(terms) >= 2 * need)",
        "the bound would be above what the best schedule costs",
        "moccasin::the_relaxation_bounds_every_schedule_in_fixed_order_whatever_the_limit",
    ),
    _solver(
        "moccasin/lanes",
        ">= sent[value]), out.present",
        ">= 0), out.present",
        "a value could leave memory, and be copied back, before it is copied out",
        "offloading::moccasins_model_alone_counts_copies_that_cannot_hide",
    ),
    _solver(
        "offloading/transfers",
        "begin = np.cumsum(costs) - costs",
        "from checkmate_tf.simulator import time_schedule; begin = np.array(time_schedule(graph, schedule).begin)",
        "fetches would begin too late wherever a reader waits",
        "offloading::fetches_begin_early_enough_that_no_reader_waits",
    ),
    _solver(
        "offloading/conversions",
        'if event.is_first or event.way in (way, "retain"):',
        'if event.is_first or event.way != "compute":',
        "offloaded values would never be recomputed, even where that takes less time",
        "offloading::a_fetch_becomes_a_recomputation_where_its_copies_take_longer",
    ),
    _solver(
        "offloading/conversions",
        "if simulation.peak_bytes > self._budget_bytes or",
        "if simulation.peak_bytes > 2 * self._budget_bytes or",
        "schedules would go above the budget",
        "offloading::converted_copies_cost_no_more_and_stay_within_the_budget",
    ),
    # fastsa
    _solver(
        "fastsa/node_grouping",
        "return sizes[list(inputs)].sum() <= sizes[list(node.outputs)].sum()",
        "return sizes[list(inputs)].sum() < sizes[list(node.outputs)].sum()",
        "a node that yields as much as it reads would stay alone",
        "fastsa::grouping_fuses_figure_6",
        "fastsa::groups_of_a_long_chain_stay_bounded",
    ),
    _solver(
        "fastsa/node_grouping",
        "return max(0, most - outputs, held + group[-1].workspace_bytes)",
        "return max(0, most - outputs)",
        "a group would take less memory than its members do",
        "fastsa::groups_take_no_less_memory_than_their_members_and_cost_the_same",
    ),
    _solver(
        "fastsa/solver",
        "cooling = (options.last_temperature / temperature) ** (1 / (num_rounds - index))",
        "cooling = 1.0",
        "the annealing would stay as hot as it begins",
        "fastsa::an_annealing_cools_from_its_first_temperature_to_its_last",
    ),
    # stage_annealing
    _solver(
        "annealing/annealer",
        "if self.overflow == 0 and (self.best_cost is None",
        "if (self.best_cost is None",
        "a set above the budget would be the best",
        "stage_annealing",
    ),
    _solver(
        "annealing/merging",
        "self.program.add(total <= self._room_bytes - fixed_bytes)",
        "self.program.add(total <= self._room_bytes)",
        "what merging finds would exceed the budget",
        "merging",
    ),
    # block_relaxation
    _solver(
        "relaxation/builder",
        "fixed -= self.takeover_bytes(reusable, [self.retain.get((block + 1, value)) for value in reusable], terms)",
        "pass",
        "the bound would forget what is written over in place, and exceed the optimum",
        "block_relaxation::any_blocks_and_any_rows_give_a_lower_bound",
        "block_relaxation::every_block_single_and_every_row_is_exact",
    ),
    _solver(
        "relaxation/model",
        "return terms, 0 if cut.carried else 1",
        "return terms, 1",
        "path cuts would cut off schedules",
        "block_relaxation",
    ),
    # auto and the least memory
    _solver(
        "portfolio/auto",
        "bound = graph.baseline_cost + (least_extra if proved else 0)",
        "bound = graph.baseline_cost + least_extra",
        "free order would be given a bound that is not proved",
        "auto::without_a_proof_about_orders_the_bound_in_free_order_is_the_baseline",
    ),
    _solver(
        "portfolio/minimum_memory",
        "        if found.status is Status.INFEASIBLE:\n            proved = middle\n",
        "        proved = middle\n",
        "a budget that nothing was found for would be called impossible",
        "minimum_memory",
    ),
)
