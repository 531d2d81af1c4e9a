"""What `fit_on_gpu` measures: each function runs in a process of its own, and reports each result as it comes.

A function gets `report`, which takes a result by keywords, and its point. What fails within it is reported and the
next is tried, running out of memory included.
"""

import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import checkmate_tf
from checkmate_tf.budget import parse_budget
from checkmate_tf.demo import make_tasks
from checkmate_tf.executors.graph.accuracy import measure_accuracy
from checkmate_tf.measurement.device_memory import count_bytes_in_use, find_free_bytes, reserve_pool
from checkmate_tf.measurement.step_meter import StepMeter
from checkmate_tf.profiling.costs import cost_training_graph
from checkmate_tf.profiling.device import find_default_device, make_device_key
from checkmate_tf.profiling.memory import measure_allocator_peak_bytes, read_peak_bytes, reset_peak_bytes
from checkmate_tf.profiling.profiler import profile_graph
from checkmate_tf.simulator import make_retain_all_schedule, simulate
from checkmate_tf.solvers import solve
from checkmate_tf.tf_private import find_memory_limit
from checkmate_tf.training.traced_model import trace_model
from experiments.models import resnet50
from experiments.peers.models import build
from experiments.profiling.models import unet
from experiments.running import ROOT

Report = Callable[..., None]
Batch = tuple[np.ndarray, np.ndarray]

STOCK = "stock"
_LIMIT_MIB = 4096


@dataclass(frozen=True)
class Effort:
    """An effort says how often things are done.

    Args:
        steps: of `fit`, and of `train_on_batch`, whose peaks are told.
        pairs: of timed steps.
        time_limit_s: of the solver for each plan.
    """

    steps: int = 4
    pairs: int = 12
    time_limit_s: float = 15.0


EFFORT = Effort()
SMALL_EFFORT = Effort(steps=3, pairs=3, time_limit_s=3.0)
# Of the suite's own: numbers and peaks of rewritten steps, on whatever device there is.
_TESTS = (
    "tests/executors/graph/test_emission.py",
    "tests/executors/emission/test_awaited_calls.py",
    "tests/training/test_functions.py",
    "tests/training/test_training.py",
    "tests/training/test_memory_report.py",
    "tests/profiling/test_profiler.py",
    "tests/executors/xla/test_xla.py",
)


def see_card(report: Report, effort: Effort) -> None:
    """Whether TensorFlow sees the card, and what one matrix product and one convolution take there."""
    _let_memory_grow()
    device = find_default_device()
    report(what="device", device=device, key=asdict(make_device_key(device)), build=dict(tf.sysconfig.get_build_info()))
    size, image = (8192, 224) if device.startswith("GPU") else (1024, 64)
    left = tf.random.normal([size, size])
    pixels, filters = tf.random.normal([16, image, image, 64]), tf.random.normal([3, 3, 64, 64])
    for what, run, flops in (
        ("matrix product", lambda: left @ left, 2 * size**3),
        ("convolution", lambda: tf.nn.conv2d(pixels, filters, 1, "SAME"), 2 * 16 * image**2 * 9 * 64 * 64),
    ):
        with _tried(report, what=what):
            run()
            seconds = [_time(run) for _ in range(5)]
            report(what=what, placed=run().device, step_s=median(seconds), tflops=flops / median(seconds) / 1e12)


def check_assumptions(report: Report, effort: Effort) -> None:
    """What the code takes for granted of a device, asked of the device that is here."""
    _let_memory_grow()
    device = find_default_device()
    kind, _, index = device.partition(":")
    taken = 64 << 20
    held: list[tf.Tensor] = []
    checks: dict[str, Callable[[], Any]] = {
        "the allocator counts a tensor": lambda: measure_allocator_peak_bytes(
            lambda: held.append(tf.raw_ops.Empty(shape=[taken], dtype=tf.uint8)), device=device
        ),
        "a small tensor counts, bytes of 1 KiB": lambda: measure_allocator_peak_bytes(
            lambda: held.append(tf.zeros([256])), device=device
        ),
        "memory limit": lambda: find_memory_limit(kind, index),
        "free": lambda: find_free_bytes(device),
        "in use": count_bytes_in_use,
        "a batch of fit lies on": _find_batch_devices,
        "a batch of train_on_batch lies on": lambda: _find_batch_devices(on_batch=True),
        "a function's int32 lies on": lambda: tf.function(lambda x: x + 1)(tf.constant([1])).device,
        "peaks of first steps of a convolution": _measure_first_convolutions,
    }
    for what, check in checks.items():
        with _tried(report, what=what):
            report(what=what, found=check())
    allocator = "from experiments.gpu.fit_parts import print_allocator as p; p()"
    for name in ("cuda_malloc_async", "default"):
        variables = {} if name == "default" else {"TF_GPU_ALLOCATOR": name}
        command = [sys.executable, "-c", allocator]
        ran = subprocess.run(
            command, env=os.environ | variables, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )
        lines = (ran.stdout if ran.returncode == 0 else ran.stderr).strip().splitlines()
        report(what=f"allocator {name}", found=lines[-1] if lines else ran.returncode)


def print_allocator() -> None:
    """Prints what the allocator of this process says of a tensor of 64 MiB, and the limit."""
    device = find_default_device()
    kind, _, index = device.partition(":")
    held = []
    peak = measure_allocator_peak_bytes(lambda: held.append(tf.zeros([1 << 24])), device=device)
    print({"peak_bytes": peak, "limit_bytes": find_memory_limit(kind, index), "free_bytes": find_free_bytes(device)})


def train_within_budgets(
    report: Report,
    effort: Effort,
    *,
    model: str,
    batch_size: int | None = None,
    budgets: Sequence[str] = ("60%", "40%"),
    executor: str = "graph",
    policy: str = "float32",
    offload: str | None = None,
) -> None:
    """Trains a model stock and within budgets: peaks of every step, numbers, step times in pairs, seconds of planning.

    Peaks are what the allocator had in use, less what it had before the model was built.
    """
    _let_memory_grow()
    _warm_up()
    for budget in (STOCK, *budgets):
        about = {"model": model, "batch_size": batch_size, "executor": executor, "budget": budget}
        with _tried(report, **about):
            report(**about, **_train_within(model, batch_size, executor, policy, budget, offload, effort))


def _train_within(
    name: str,
    batch_size: int | None,
    executor: str,
    policy: str,
    budget: str,
    offload: str | None,
    effort: Effort,
) -> dict[str, Any]:
    held_bytes = count_bytes_in_use()
    model, batch = build_model(name, batch_size, executor, policy)
    found: dict[str, Any] = {}
    if budget != STOCK:
        began = time.perf_counter()
        options = checkmate_tf.Options(offload=offload)
        plan = checkmate_tf.rematerialize(
            model, data=batch, budget=budget, options=options, time_limit_s=effort.time_limit_s, progress=False
        )
        found = {"planning_s": time.perf_counter() - began, **_describe(plan)}
    weights = _copy_weights(model)
    found |= _measure_peaks(model, batch, held_bytes, effort.steps)
    trained = _copy_weights(model)
    stock, _ = build_model(name, batch_size, executor, policy)
    for variable, value in zip(stock.variables, weights, strict=True):
        variable.assign(value)
    _train_steps(stock, batch, effort.steps)
    found["differs_from_stock"] = max(
        float(abs(mine - theirs).max()) / max(float(abs(theirs).max()), 1e-6)
        for mine, theirs in zip(trained, _copy_weights(stock), strict=True)
    )
    seconds = _time_in_turn({"ours": model, "stock": stock}, batch, effort.pairs)
    found["over_stock"] = median(each["ours"] / each["stock"] for each in seconds)
    found["stock_step_s"] = median(each["stock"] for each in seconds)
    return found


def compare_with_peer(report: Report, effort: Effort, *, model: str, executor: str, rows: int) -> None:
    """`rematerialize` within the memory that `tf.recompute_grad` around each block takes, and both beside stock."""
    _let_memory_grow()
    _warm_up()
    about = {"model": model, "executor": executor}
    with _tried(report, **about):
        found: dict[str, Any] = {}
        models = {}
        for way in ("tf.recompute_grad", STOCK, "ours"):
            held_bytes = count_bytes_in_use()
            built, (x, y) = build(model, "tf.recompute_grad" if way == "tf.recompute_grad" else "stock")
            batch = np.resize(x, (rows, *x.shape[1:])), np.resize(y, (rows, *y.shape[1:]))
            _compile(built, executor)
            models[way] = built
            if way == "ours":
                began = time.perf_counter()
                budget_bytes = found["tf.recompute_grad_peak_bytes"]
                plan = checkmate_tf.rematerialize(
                    built, data=batch, budget=budget_bytes, time_limit_s=effort.time_limit_s, progress=False
                )
                found |= {"planning_s": time.perf_counter() - began, **_describe(plan)}
            peaks = _measure_peaks(built, batch, held_bytes, effort.steps)
            found[f"{way}_peak_bytes"] = max(peaks["fit_peaks_bytes"][1:] + peaks["batch_peaks_bytes"])
        seconds = _time_in_turn(models, batch, effort.pairs)
        for one, other in (("tf.recompute_grad", STOCK), ("ours", STOCK), ("ours", "tf.recompute_grad")):
            found[f"{one} over {other}"] = median(each[one] / each[other] for each in seconds)
        report(**about, **found)


def predict_and_measure(report: Report, effort: Effort, *, model: str, batch_size: int) -> None:
    """Costs and workspace as profiled, and what steps by three schedules take: predicted and measured."""
    _let_memory_grow()
    device = find_default_device()
    compiled, _ = build_model(model, batch_size, "graph")
    model_step = trace_model(compiled, batch_size=batch_size)
    step = model_step.make_graph_step(model_step.spec.make_zeros())
    profile = profile_graph(step.training_graph, device=device, progress=False)
    told = [entry for entry in profile.measurements if entry is not None]
    report(
        model=model,
        what="profile",
        num_nodes=len(profile.measurements),
        num_measured=profile.num_measured,
        not_measured=len(profile.reasons),
        first_reason=next(iter(profile.reasons.values()), ""),
        seconds=profile.took_s,
        largest_workspace_bytes=max((entry.workspace_bytes or 0 for entry in told), default=0),
    )
    traced = cost_training_graph(step.training_graph, device=device, progress=False)
    graph = traced.graph
    schedules = {"in order": make_retain_all_schedule(graph)}
    peak_bytes = simulate(graph, schedules["in order"]).peak_bytes
    for budget in ("80%", "60%"):
        solution = solve(graph, parse_budget(budget, peak_bytes=peak_bytes), time_limit_s=effort.time_limit_s)
        if solution.schedule is not None:
            schedules[budget] = solution.schedule
    accuracy = measure_accuracy(traced, schedules, step.arguments, device=device, rounds=effort.pairs)
    figures = accuracy.list_figures()
    for one in figures["steps"]:
        about = {key: value for key, value in one.items() if key != "step_times_s"}
        report(model=model, what="step", stock_s=median(figures["stock_times_s"]), **about)


def train_within_limit(report: Report, effort: Effort, *, model: str, batch_size: int) -> None:
    """Trains where the card is limited: `budget="auto"`, out of memory on purpose, and training on after it."""
    device = _limit_memory()
    kind, _, index = device.partition(":")
    report(what="limit", limit_bytes=find_memory_limit(kind, index), free_bytes=find_free_bytes(device))
    with _tried(report, what="auto"):
        net, batch = build_model(model, batch_size, "graph")
        plan = checkmate_tf.rematerialize(
            net, data=batch, budget="auto", time_limit_s=effort.time_limit_s, progress=False
        )
        memory = checkmate_tf.MemoryReport()
        net.fit(*batch, batch_size=batch_size, epochs=effort.steps, shuffle=False, verbose=0, callbacks=[memory])
        report(what="auto", **_describe(plan), report_peak_bytes=memory.peak_bytes, num_above=memory.num_above)
    with _tried(report, what="out of memory on purpose"):
        try:
            tf.raw_ops.Empty(shape=[1 << 22, 1 << 20], dtype=tf.float32)
            report(what="out of memory on purpose", found="4 TiB were given")
        except tf.errors.ResourceExhaustedError as error:
            report(what="out of memory on purpose", found=type(error).__name__, in_use_bytes=count_bytes_in_use())
    with _tried(report, what="planned step after it"):
        report(what="planned step after it", loss=_train_once(net, batch))
    with _tried(report, what="stock step, 4 times the rows"):
        checkmate_tf.restore(net)
        many = [np.repeat(part, 4, axis=0) for part in batch]
        try:
            report(what="stock step, 4 times the rows", loss=_train_once(net, many))
        except tf.errors.ResourceExhaustedError as error:
            report(what="stock step, 4 times the rows", found=str(error).splitlines()[0][:200])
    with _tried(report, what="planned again after it"):
        gc.collect()
        plan = checkmate_tf.rematerialize(
            net, data=batch, budget="auto", time_limit_s=effort.time_limit_s, progress=False
        )
        report(what="planned again after it", **_describe(plan), loss=_train_once(net, batch))


def find_max_batch(
    report: Report, effort: Effort, *, model: str, batch_size: int | None = None, maximum: int = 1024
) -> None:
    """The largest batch within the limit, each run in a process of its own beside this one."""
    device = _limit_memory()
    net, _ = build_model(model, batch_size, "graph")
    budget: str | int = "auto" if device.startswith("GPU") else 128 << 20
    found = checkmate_tf.max_batch_size(
        net,
        budget=budget,
        axis=checkmate_tf.Axis("batch", maximum=maximum, multiple_of=8),
        time_limit_s=2 * effort.time_limit_s,
        progress=False,
    )
    for trial in found.trials:
        report(what="trial", trial=asdict(trial))
    about = {"size": found.size, "stock_size": found.stock_size, "confirmed": found.confirmed, "beyond": found.beyond}
    report(what="found", **about, seconds=found.took_s, **_describe(found.plan))


def train_replicas(report: Report, effort: Effort, *, model: str, replicas: int, batch_size: int | None = None) -> None:
    """Trains under `MirroredStrategy`, with as many logical devices of one card as there are replicas."""
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    limit = _LIMIT_MIB if kind == "GPU" else None
    (first, *_) = tf.config.list_physical_devices(kind)
    parts = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for _ in range(replicas)]
    tf.config.set_logical_device_configuration(first, parts)
    devices = [f"{kind}:{number}" for number in range(replicas)]
    # NCCL joins cards, not the parts of one.
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.HierarchicalCopyAllReduce())
    with _tried(report, replicas=replicas):
        with strategy.scope():
            net, (x, y) = build_model(model, batch_size, "graph")
        rows = len(x) * replicas
        data = np.resize(x, (rows, *x.shape[1:])), np.resize(y, (rows, *y.shape[1:]))
        plan = checkmate_tf.rematerialize(
            net, data=data, batch_size=rows, budget="60%", time_limit_s=effort.time_limit_s, progress=False
        )
        before = [reset_peak_bytes(device) for device in devices]
        net.fit(*data, batch_size=rows, epochs=effort.steps, shuffle=False, verbose=0)
        peaks = [None if start is None else read_peak_bytes(each) for each, start in zip(devices, before, strict=True)]
        report(replicas=replicas, **_describe(plan), peaks_bytes=peaks, loss=float(net.history.history["loss"][-1]))


def run_tests(report: Report, effort: Effort, *, tests: Sequence[str] = _TESTS) -> None:
    """Runs some of the project's own tests, and reports each outcome as it comes."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--tb=line", *tests]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        told = list(_report_outcomes(report, process.stdout))
    report(what="in all", passed=told.count("PASSED"), of=len(told), status=process.returncode)


def _report_outcomes(report: Report, lines: Iterator[str] | Any) -> Iterator[str]:
    last = ""
    for line in lines:
        found = re.match(r"(\S+::\S.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)", line)
        if found:
            if found[2] not in ("PASSED", "SKIPPED"):
                report(test=found[1], result=found[2])
            yield found[2]
        elif re.match(r"\S+\.py:\d+: ", line):  # of each failure, at the end
            report(failure=line.strip()[:300])
        last = line.strip() or last
    report(last_line=last[:300])


@contextmanager
def _tried(report: Report, **about: Any) -> Iterator[None]:
    """Reports what fails within it, and lets the rest go on."""
    gc.collect()
    try:
        yield
    except Exception as error:
        report(**about, error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def _measure_peaks(model: keras.Model, batch: Batch, held_bytes: int, steps: int) -> dict[str, list[int]]:
    """Peaks of steps of `fit` and of `train_on_batch`, the first of each included."""
    meter = StepMeter(held_bytes)
    model.fit(*batch, batch_size=len(batch[0]), epochs=steps, shuffle=False, verbose=0, callbacks=[meter])
    for step in range(steps):
        meter.on_train_batch_begin(step)
        model.train_on_batch(*batch)
        meter.on_train_batch_end(step)
    return {"fit_peaks_bytes": meter.peaks_bytes[:steps], "batch_peaks_bytes": meter.peaks_bytes[steps:]}


def _train_steps(model: keras.Model, batch: Batch, steps: int) -> None:
    """Trains as much as `_measure_peaks` does."""
    model.fit(*batch, batch_size=len(batch[0]), epochs=steps, shuffle=False, verbose=0)
    for _ in range(steps):
        model.train_on_batch(*batch)


def _time_in_turn(models: dict[str, keras.Model], batch: Batch, pairs: int) -> list[dict[str, float]]:
    """Seconds of steps, one of each model in each round, each first as often as the others."""
    names = list(models)
    rounds = []
    for turn in range(pairs + 1):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        rounds.append({name: _time(lambda name=name: models[name].train_on_batch(*batch)) for name in order})
    return rounds[1:]


def _time(run: Callable[[], Any]) -> float:
    tf.test.experimental.sync_devices()
    began = time.perf_counter()
    run()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - began


def _train_once(model: keras.Model, batch: Sequence[np.ndarray]) -> float:
    return float(model.train_on_batch(*batch, return_dict=True)["loss"])


def _describe(plan: Any) -> dict[str, Any]:
    return {
        "budget_bytes": plan.budget_bytes,
        "stock_bytes": plan.stock_peak_bytes,
        "predicted_stock_bytes": plan.predicted_stock_peak_bytes,
        "predicted_bytes": plan.predicted_peak_bytes,
        "measured_bytes": plan.measured_peak_bytes,
        "overhead": plan.overhead,
        "num_recomputed": len(plan.recomputed),
        "offloaded_bytes": sum(value.size_bytes for value in plan.offloaded),
        "offloaded_state_bytes": plan.resident.offloaded,
    }


def _copy_weights(model: keras.Model) -> list[np.ndarray]:
    return [np.asarray(variable) for variable in model.variables]


def build_model(name: str, batch_size: int | None, executor: str, policy: str = "float32") -> tuple[keras.Model, Batch]:
    """A compiled model and a batch for it; the same weights each time."""
    if not tf.distribute.has_strategy():
        keras.utils.clear_session()  # it would leave the scope of one
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(0)
    model, batch = _MODELS[name](batch_size)
    _compile(model, executor)
    return model, batch


def _compile(model: keras.Model, executor: str) -> None:
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(optimizer, model.loss, jit_compile=executor == "xla")


def _build_readme(batch_size: int | None) -> tuple[keras.Model, Batch]:
    convolutions = [layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(8)]
    model = keras.Sequential(
        [keras.Input((64, 64, 3)), *convolutions, layers.GlobalAveragePooling2D(), layers.Dense(10)]
    )
    return _with_classes(model, batch_size or 16)


def _build_demo(number: int, batch_size: int | None, image_size: int = 64) -> tuple[keras.Model, Batch]:
    task = list(make_tasks(batch_size=batch_size or 32, num_batches=1, image_size=image_size))[number]
    return task.model, (task.x, task.y)


def _build_gpt2(
    batch_size: int | None, blocks: int = 12, width: int = 768, heads: int = 12, length: int = 512, words: int = 50_257
) -> tuple[keras.Model, Batch]:
    """GPT-2's architecture: pre-norm blocks with causal attention, and logits for all words."""
    tokens = keras.Input((length,), dtype="int32")
    positions = layers.Embedding(length, width)(keras.ops.arange(length))
    hidden = layers.Embedding(words, width)(tokens) + positions
    for _ in range(blocks):
        normal = layers.LayerNormalization()(hidden)
        hidden = hidden + layers.MultiHeadAttention(heads, width // heads)(normal, normal, use_causal_mask=True)
        wide = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(hidden))
        hidden = hidden + layers.Dense(width)(wide)
    model = keras.Model(tokens, layers.Dense(words)(layers.LayerNormalization()(hidden)), name="gpt2")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(0)
    x = random.integers(0, words, (batch_size or 8, length)).astype("int32")
    return model, (x, np.roll(x, -1, axis=1))


def _build_unet(batch_size: int | None, size: int = 256, width: int = 64, depth: int = 4) -> tuple[keras.Model, Batch]:
    model = unet(size, width, depth)
    random = np.random.default_rng(0)
    x = random.normal(size=(batch_size or 32, size, size, 3)).astype("float32")
    return model, (x, random.integers(0, 2, x.shape[:-1]))


def _build_dense(width: int = 128) -> keras.Model:
    hidden = [layers.Dense(width, activation="relu") for _ in range(6)]
    return keras.Sequential([keras.Input((width,)), *hidden, layers.Dense(10)])


def _with_classes(model: keras.Model, batch_size: int) -> tuple[keras.Model, Batch]:
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(0)
    x = random.normal(size=(batch_size, *model.input_shape[1:])).astype("float32")
    return model, (x, random.integers(0, model.output_shape[-1], batch_size))


_MODELS: dict[str, Callable[[int | None], tuple[keras.Model, Batch]]] = {
    "readme": _build_readme,
    "demo unet": lambda batch_size: _build_demo(0, batch_size),
    "demo resnet": lambda batch_size: _build_demo(1, batch_size),
    "resnet50": lambda batch_size: _with_classes(resnet50(), batch_size or 64),
    "unet": _build_unet,
    "gpt2": _build_gpt2,
    "wide": lambda batch_size: _with_classes(_build_dense(4096), batch_size or 64),
    "small resnet": lambda batch_size: _build_demo(1, batch_size, image_size=32),
    "small dense": lambda batch_size: _with_classes(_build_dense(), batch_size or 256),
    "small wide": lambda batch_size: _with_classes(_build_dense(512), batch_size or 16),
    "small unet": lambda batch_size: _build_unet(batch_size, size=32, width=8, depth=2),
    "small gpt2": lambda batch_size: _build_gpt2(batch_size, blocks=2, width=64, heads=2, length=64, words=500),
}


def _let_memory_grow() -> None:
    """Has TensorFlow take memory as it needs it, so that other processes find some."""
    for card in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(card, True)


def _limit_memory() -> str:
    """Limits the card, where there is one; a CPU has no limit. Returns the device."""
    for card in tf.config.list_physical_devices("GPU")[:1]:
        part = tf.config.LogicalDeviceConfiguration(memory_limit=_LIMIT_MIB)
        tf.config.set_logical_device_configuration(card, [part])
    return find_default_device()


def _warm_up() -> None:
    """Prepares what the first step of a process has to prepare, whatever its model, and the pool of a CPU."""
    reserve_pool(1 << 30)
    model = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(np.zeros((1, 1)), np.zeros((1, 1)))


def _find_batch_devices(*, on_batch: bool = False) -> list[str]:
    """Where the tensors lie that a training step is handed."""
    found: list[str] = []
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)

    def take(iterator: Any) -> dict[str, Any]:
        found.extend(getattr(leaf, "device", type(leaf).__name__) for leaf in tf.nest.flatten(next(iterator)))
        return {}

    model.make_train_function = lambda force=False: None
    model.train_function = take
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    if on_batch:
        model.train_on_batch(x, y)
    else:
        model.fit(x, y, batch_size=8, verbose=0)
    return found


def _measure_first_convolutions() -> list[int | None]:
    """Peaks of the first calls of one convolution and its gradients: a library may try kernels with much scratch."""
    size = 56 if find_default_device().startswith("GPU") else 16
    x, filters = tf.random.normal([64, size, size, 64]), tf.Variable(tf.random.normal([3, 3, 64, 64]))

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.conv2d(x, filters, 1, "SAME") ** 2)
        return tape.gradient(loss, filters)

    return [measure_allocator_peak_bytes(step, device=find_default_device()) for _ in range(4)]
