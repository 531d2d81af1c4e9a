"""Defines the arguments of planning: `Options`, which control how schedules are found, and a `Request`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from checkmate_tf.arguments import check_flags, check_seed, check_share, check_size, check_time_limit, check_word
from checkmate_tf.budget import check_budget, parse_budget
from checkmate_tf.errors import BudgetError, CheckmateError, OffloadError, ProfileError, UnsupportedModelError, quote
from checkmate_tf.executors.step import HostMemory, OffloadFolder, Step
from checkmate_tf.graph import Graph
from checkmate_tf.origins import Origins
from checkmate_tf.patterns import Pattern, Steering, check_patterns, steer
from checkmate_tf.planning.planned_step import PlannedStep
from checkmate_tf.profiling.costs import CostModel, DeviceCosts, ProfiledCosts, make_cost_model
from checkmate_tf.profiling.devices import DeviceFigures, find_device, load_profile
from checkmate_tf.progress import PlanningBar
from checkmate_tf.schedule import Order
from checkmate_tf.solvers import Solver
from checkmate_tf.solvers.registry import choose_solver

# Share of a device's free memory that is left for other memory of this process, and for other processes.
_AUTO_MARGIN = 0.1
_FILE = "file:"

OnInfeasible = Literal["run", "raise"]
OnMismatch = Literal["raise", "replan"]
ChunkRows = Literal["auto"] | int | None


@dataclass(frozen=True)
class Options:
    """Options control how a schedule is found. The defaults suit most models.

    Args:
        solver: a name that `checkmate-tf solvers` lists, or a solver with your own settings.
        order: "fixed" keeps the order of the trace, or the order in which values are needed if the trace computes them
            much earlier. "free" lets the solver reorder the step.
        costs: the source of node costs. "measured" times each node on this device, "roofline" estimates times from the
            rates of the device, "flops" counts operations, and "unit" counts nodes. "auto" is "roofline" for a model
            that XLA compiles, and "measured" otherwise. "h100", "a100", "l4", "t4" and "v100" estimate the times of
            these devices from their manufacturers' figures. "NAME.json" is a profile that `checkmate-tf profile export`
            printed. If `device` is given, "auto" and "roofline" are that device's figures.
        seed: an integer from which randomness starts; the same seed leads to the same schedule.
        on_mismatch: what to do with a plan file that is for another step, or that exceeds its budget here: "raise"
            PlanError, or "replan".
        chunk_loss: computes the loss, its gradient and metrics in chunks of rows, so that the logits of a large
            vocabulary are never in memory at once. "auto" uses as many chunks as the budget needs, and none if the
            stock step fits. A number is the most rows in a chunk. Chunks change the order of sums over rows.
        chunk_rows: computes wide products and activations, such as those of feed-forward blocks and the scores of
            attention, in chunks of rows, and computes them again for their gradients. "auto" does so if no schedule
            fits the budget otherwise. A number is the most rows in a chunk. A row is a token; attention takes the same
            queries of all entries of a batch at a time.
        num_shapes: the number of batch shapes to plan before training, the largest first, if the batches of `data`
            differ in shape. Batches with other shapes are planned when they first appear.
        margin: the share of the budget, not counting the model's state, that plans leave unused, such as "5%". None
            means 10 % for the budget "auto", and no margin for other budgets.
        keep: patterns of nodes that are never computed again, such as ["*attention*"]. A pattern matches paths of
            layers or names of operations, or is a function of a `Node` that returns whether it matches.
        recompute: patterns of forward nodes whose results are not retained for the backward pass.
        offload: "file:DIRECTORY" copies values to a file in a directory and back while the step computes, if that costs
            less than computing them again. "host" copies them from a GPU to host memory: in steps of the graph executor
            on this machine, or in plans with `device`. Optimizer state moves there, too, if the budget requires it.
            None keeps all values in the device's memory.
        bandwidth: bytes per second of copies to the directory, or to host memory, in either direction, such as "2GiB".
            None measures it, or takes the rate of the device's bus.
        device: "h100", "a100", "l4", "t4" or "v100" plans for that GPU, which this machine need not have. JAX compiles
            the steps for it, so the model must be compiled with `jit_compile=True`. None plans for this machine.

    Raises:
        SolverError: for an unknown solver or order, or a seed that is not an integer.
        ProfileError: for unknown costs, an unknown device, or measured costs of a device that is not here.
        BatchError: for a `chunk_loss` or `chunk_rows` that is neither None, "auto" nor a number of rows, or for
            `num_shapes` below 1.
        PatternError: for an invalid pattern.
        OffloadError: for an `offload` that names no directory.
        BudgetError: for a `bandwidth` that is not a number of bytes.

    Example:

    >>> Options(order="free").solver
    'auto'
    """

    solver: str | Solver = "auto"
    order: Order = "fixed"
    costs: str | CostModel = "auto"
    seed: int = 0
    on_mismatch: OnMismatch = "raise"
    chunk_loss: ChunkRows = None
    chunk_rows: ChunkRows = None
    num_shapes: int = 1
    margin: float | str | None = None
    keep: Sequence[Pattern] = ()
    recompute: Sequence[Pattern] = ()
    offload: str | None = None
    bandwidth: int | float | str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        choose_solver(self.solver)
        check_word(self.order, "order", Order)
        check_word(self.on_mismatch, "on_mismatch", OnMismatch)
        self.choose_costs(compiled=False)
        for name in ("chunk_loss", "chunk_rows"):
            if getattr(self, name) not in (None, "auto"):
                object.__setattr__(self, name, check_size(getattr(self, name), name))
        object.__setattr__(self, "num_shapes", check_size(self.num_shapes, "num_shapes"))
        if self.margin is not None:
            object.__setattr__(self, "margin", check_share(self.margin, "margin"))
        object.__setattr__(self, "keep", check_patterns(self.keep, "keep"))
        object.__setattr__(self, "recompute", check_patterns(self.recompute, "recompute"))
        self.find_place()
        object.__setattr__(self, "seed", check_seed(self.seed))  # Solvers work with Python's numbers, not NumPy's.

    def choose_costs(self, *, compiled: bool, progress: bool = True) -> CostModel:
        """Returns the cost model for a step that XLA compiles, or does not. Raises ProfileError for anything else."""
        if self.find_device() is not None and isinstance(self.costs, str):
            if self.costs in ("auto", "roofline"):
                return DeviceCosts(str(self.device), compiled)
            if self.costs == "measured":
                raise ProfileError(
                    f'costs="measured" times nodes on this machine, and the plan is for {self.device!r}: leave costs '
                    "out, or pass a profile that `checkmate-tf profile export` printed there"
                )
        if isinstance(self.costs, str):
            return make_cost_model(self.costs, compiled=compiled, progress=progress)
        if not isinstance(self.costs, CostModel):
            raise ProfileError(
                f'costs is {quote(self.costs)}; it must be a name such as "measured", or a model such as FlopsCosts()'
            )
        return self.costs

    def find_place(self) -> OffloadFolder | HostMemory | None:
        """Returns the place to which values may be copied; None if all stay in memory."""
        rate = None if self.bandwidth is None else _read_bandwidth(self.bandwidth)
        if self.offload is None:
            return None
        if self.offload == "host":
            return HostMemory(rate)
        if not isinstance(self.offload, str) or not self.offload.startswith(_FILE) or self.offload == _FILE:
            raise OffloadError(f'offload is {quote(self.offload)}; it must be "file:DIRECTORY", "host" or None')
        return OffloadFolder(self.offload.removeprefix(_FILE), rate)

    def find_device(self) -> DeviceFigures | None:
        """Returns the device to plan for if it is not here; None for this machine's device."""
        return None if self.device is None else find_device(self.device)

    @property
    def are_of_this_package(self) -> bool:
        """Returns whether solver and costs are this package's own. Others may change under the same name."""
        chosen = (self.solver, self.costs)
        return all(isinstance(one, str) or type(one).__module__.startswith("checkmate_tf.") for one in chosen)

    def read_profile(self) -> dict[str, float] | None:
        """Returns the contents of the file of costs; None if costs come from no file."""
        costs = self.choose_costs(compiled=False)
        return load_profile(costs.path) if isinstance(costs, ProfiledCosts) else None

    def steer(self, graph: Graph, origins: Origins) -> tuple[Steering, ...]:
        """Returns the nodes of a graph that each pattern constrains. Raises PatternError if a pattern matches none."""
        return tuple(steer(graph, origins, keep=self.keep, recompute=self.recompute))


@dataclass(frozen=True)
class Request:
    """A request to planning. It is the same for every batch shape of a model.

    Args:
        budget: bytes, "6GiB", "60%" of the stock peak, or "auto".
        time_limit_s: seconds for all solver runs of one plan together.
        measure: whether to run the step in place, on copies of the state, and to lower the target until the measured
            peak is within the budget.
        progress: whether to show progress bars on standard error, if that is a terminal, while nodes are measured and
            while a solver runs.
        on_infeasible: what to do if training meets a batch with a new shape that no plan keeps within the budget: "run"
            the plan of least memory, after a warning, or "raise".
        plan: a plan to install for the first step that is planned, if it is for that step.
    """

    budget: int | float | str
    time_limit_s: float = 60.0
    options: Options = field(default_factory=Options)
    measure: bool = True
    progress: bool = True
    on_infeasible: OnInfeasible = "run"
    plan: PlannedStep | None = None

    def __post_init__(self) -> None:
        """Raises an error of this package for the first invalid argument, before any work."""
        if not (isinstance(self.budget, str) and self.budget == "auto"):
            check_budget(self.budget)
        if not isinstance(self.options, Options):
            raise CheckmateError(f"options is {quote(self.options)}; it must be Options(...)")
        check_word(self.on_infeasible, "on_infeasible", OnInfeasible)
        check_flags(measure=self.measure, progress=self.progress)
        object.__setattr__(self, "time_limit_s", check_time_limit(self.time_limit_s))

    def fix_budget(self, budget_bytes: int) -> "Request":
        """Returns the request with a budget in bytes, from which no further margin is subtracted."""
        return replace(self, budget=budget_bytes, options=replace(self.options, margin=0.0))

    def find_margin(self, budget_bytes: int, state_bytes: int) -> int:
        """Returns the bytes of a budget that plans leave unused. `state_bytes` are the model's own."""
        margin = self.options.margin
        share = (_AUTO_MARGIN if self.budget == "auto" else 0.0) if margin is None else float(margin)
        return int(share * max(budget_bytes - state_bytes, 0))

    def check_device(self, name: str, *, compiled: bool) -> None:
        """Raises UnsupportedModelError if the device is not here and XLA does not compile the step.

        Args:
            name: the name of the model.
            compiled: whether XLA compiles its step.
        """
        if self.options.device is not None and not compiled:
            raise UnsupportedModelError(
                f"a plan of {name!r} for {self.options.device!r} needs a step that XLA compiles: compile it with "
                f"jit_compile=True, or plan by predictions alone, with Options(costs={self.options.device!r}) and "
                "measure=False"
            )

    def let_offload(self, step: Step) -> Step:
        """Returns a step whose values may be offloaded, if the request allows it.

        Raises UnsupportedModelError if they cannot be, and OffloadError if the directory cannot be written.
        """
        place = self.options.find_place()
        return step if place is None else step.offload_to(place)

    def add_costs(self, step: Step, bar: PlanningBar) -> Step:
        """Returns a step with the requested costs. The request's bar shows the progress of measuring them."""
        costs = self.options.choose_costs(compiled=step.uses_xla, progress=self.progress)
        return step.add_costs(costs, on_node=bar.set_fraction)


def _read_bandwidth(bandwidth: int | float | str) -> int:
    """Returns bytes per second. Raises BudgetError for anything else."""
    if isinstance(bandwidth, str) and "%" in bandwidth:
        raise BudgetError(f'bandwidth is {quote(bandwidth)}; it must be bytes in a second, such as "2GiB"')
    try:
        return parse_budget(bandwidth, peak_bytes=1)
    except BudgetError as error:
        raise BudgetError(f"bandwidth: {error}") from error
