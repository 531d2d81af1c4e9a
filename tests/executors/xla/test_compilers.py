"""Steps that are compiled for a GPU that is not here. Tests that need JAX and its CUDA plugin skip without them."""

from pathlib import Path

import keras
import pytest
import tensorflow as tf

import checkmate_tf
from checkmate_tf.cli import main
from checkmate_tf.errors import PlanError, ProfileError, SolverError, UnsupportedModelError
from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.xla import compilers
from checkmate_tf.executors.xla.compilers import LOCAL, AbsentGpuCompiler, choose_compiler, describe_target
from checkmate_tf.executors.xla.hlo.kernels import list_kernels
from checkmate_tf.executors.xla.hlo.memory import read_xla_memory
from checkmate_tf.planning.options import Options
from checkmate_tf.profiling.costs import DeviceCosts, ProfiledCosts
from checkmate_tf.profiling.devices import DEVICES
from checkmate_tf.training.installed_step import find_installed_step
from checkmate_tf.training.traced_model import trace_model
from tests.training_steps import conv_chain

BATCH_SIZE = 32
H100 = Options(device="h100")
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
needs_jax = pytest.mark.skipif(not compilers.has_jax(), reason="JAX and its CUDA plugin are not installed")


def make_model(*, jit_compile: bool = True) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = conv_chain(num_layers=8, size=32)
    model.compile(keras.optimizers.Adam(1e-3), SPARSE, jit_compile=jit_compile)
    return model


@pytest.fixture
def as_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has this machine's XLA compile what is for a GPU; a list of the devices that it was asked for."""
    devices: list[str] = []

    def compile_here(compiler: AbsentGpuCompiler, step: object, specs: object) -> object:
        devices.append(compiler.device.name)
        return LOCAL.compile_step(step, specs)

    monkeypatch.setattr(AbsentGpuCompiler, "compile_step", compile_here)
    monkeypatch.setattr("checkmate_tf.planning.planned_step.metadata.version", lambda name: "0")
    return devices


@needs_jax
def test_a_plan_for_an_h100_keeps_to_its_budget_as_jax_compiles_it():
    model = make_model()
    plan = checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget="40%", options=H100, progress=False)
    assert plan.device.startswith("NVIDIA H100 SXM, not here: compiled by JAX")
    assert plan.recomputed
    assert plan.measured_peak_bytes is not None
    assert plan.measured_peak_bytes <= plan.budget_bytes < plan.stock_peak_bytes
    assert str(plan).count("(compiled)") == 2


@needs_jax
def test_a_module_for_an_h100_has_the_gpus_kernels_and_weights_that_are_written_over():
    traced = trace_model(make_model(), batch_size=BATCH_SIZE)
    step = traced.complete(EmittedFunction(traced.function))
    module = choose_compiler(DEVICES["h100"]).compile_step(step, traced.spec.flat)
    called = {one.custom_call_target for part in module.hlo_module.computations for one in part.instructions}
    assert any(target.startswith("__cudnn$conv") for target in called)
    names = {name for kernel in list_kernels(module) for name in kernel.names}
    assert any(name.endswith("Conv2DBackpropFilter") for name in names)
    memory, state_bytes = read_xla_memory(module), traced.resident.state
    assert state_bytes <= memory.argument_bytes <= 1.1 * (state_bytes + traced.resident.batch)
    assert memory.output_bytes < 0.1 * state_bytes  # Else weights would count twice.


@needs_jax
@pytest.mark.parametrize("device", ["a100", "l4", "t4"])
def test_jax_compiles_for_other_gpus_too(device):
    function = tf.function(lambda x: tf.tanh(x @ x))
    module = choose_compiler(DEVICES[device]).compile_step(function, [tf.TensorSpec((64, 64))])
    assert read_xla_memory(module).argument_bytes == 64 * 64 * 4


@needs_jax
def test_what_jax_cannot_compile_is_an_error_with_its_reason(monkeypatch):
    monkeypatch.setattr(compilers, "describe_target", lambda figures: "gpu_device_info {")
    with pytest.raises(UnsupportedModelError, match=r"XLA does not compile the step .*JAX ended with status 1"):
        checkmate_tf.rematerialize(make_model(), batch_size=8, options=H100, progress=False)


def test_without_jax_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(compilers, "has_jax", lambda: False)
    with pytest.raises(UnsupportedModelError, match=r'NVIDIA H100 SXM.*pip install "jax\[cuda13\]"'):
        checkmate_tf.rematerialize(make_model(), batch_size=8, options=H100, progress=False)


def test_a_plan_for_another_device_is_not_installed(as_here):
    model = make_model()
    plan = checkmate_tf.rematerialize(
        model, batch_size=BATCH_SIZE, budget="40%", options=H100, measure=False, progress=False
    )
    assert set(as_here) == {"NVIDIA H100 SXM"}
    assert plan.recomputed
    assert plan.resident.prefetched == 0
    assert plan.graph.cost_unit == "ns"
    assert find_installed_step(model) is None


def test_what_is_installed_stays(as_here):
    model = make_model()
    checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget="150%", progress=False)
    (entry,) = find_installed_step(model).batches.entries.values()
    checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget="150%", options=H100, progress=False)
    assert as_here
    assert list(find_installed_step(model).batches.entries.values()) == [entry]


def test_all_of_the_gpus_memory_is_the_budget_auto(as_here):
    plan = checkmate_tf.rematerialize(make_model(), batch_size=BATCH_SIZE, options=H100, progress=False)
    memory_bytes = DEVICES["h100"].cuda.memory_bytes
    assert plan.budget_bytes == pytest.approx(0.9 * memory_bytes, rel=0.01)


def test_a_plan_file_says_what_it_was_made_for_and_is_not_for_this_machine(as_here, tmp_path):
    model = make_model()
    plan = checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget="150%", options=H100, progress=False)
    plan.save(tmp_path / "plan.json")
    assert checkmate_tf.load_plan(tmp_path / "plan.json").device == plan.device
    with pytest.raises(PlanError, match="is not for the step of"):
        checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, plan=tmp_path / "plan.json", progress=False)


def test_only_steps_that_xla_compiles_are_planned_for_another_device():
    with pytest.raises(UnsupportedModelError, match="jit_compile=True"):
        checkmate_tf.rematerialize(make_model(jit_compile=False), batch_size=8, options=H100, progress=False)
    function = tf.function(tf.tanh).get_concrete_function(tf.TensorSpec((8,)))
    with pytest.raises(UnsupportedModelError, match="jit_compile=True"):
        checkmate_tf.rewrite_function(function, budget="90%", options=H100, progress=False)


@pytest.mark.parametrize(
    "find",
    [
        lambda model: checkmate_tf.max_batch_size(model, budget="1GiB", options=H100, progress=False),
        lambda model: checkmate_tf.best_batch(
            model, budget="1GiB", effective_batch_size=8, options=H100, progress=False
        ),
    ],
)
def test_searches_that_run_steps_here_refuse_another_device(find):
    with pytest.raises(SolverError, match="plans for this machine; leave device out"):
        find(make_model())


def test_costs_are_those_of_the_device(tmp_path):
    assert H100.choose_costs(compiled=True) == DeviceCosts("h100", compiled=True)
    assert Options(device="t4", costs="roofline").choose_costs(compiled=True) == DeviceCosts("t4", compiled=True)
    profile = tmp_path / "gpu.json"
    profile.write_text('{"format": "checkmate-profile/1", "profiles": [{"measurements": []}]}')
    assert isinstance(Options(device="h100", costs=str(profile)).choose_costs(compiled=True), ProfiledCosts)
    with pytest.raises(ProfileError, match="times nodes on this machine, and the plan is for 'h100'"):
        Options(device="h100", costs="measured")


@pytest.mark.parametrize("device", ["H100", "tpu", "", 1, ["h100"]])
def test_unknown_devices_are_refused_with_those_that_are_known(device):
    with pytest.raises(ProfileError, match="is unknown; it must be one of h100, a100, l4, t4, v100"):
        Options(device=device)


@pytest.mark.parametrize("name", DEVICES)
def test_a_gpu_is_described_to_xla_by_its_figures(name):
    figures = DEVICES[name]
    text = describe_target(figures)
    assert f"core_count: {figures.cuda.num_cores}" in text
    assert f"device_memory_size: {figures.cuda.memory_bytes}" in text
    # Its cores reach at least the maker's rate, at two operations a unit and clock; nominal clocks are lower.
    cuda = figures.cuda
    assert cuda.num_cores * cuda.units_per_core * cuda.clock_ghz * 2 / 1000 >= 0.99 * figures.vector_tflops


def test_the_command_plans_for_another_device_whatever_the_model_is_compiled_for(
    as_here, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(
        "import keras\n\n\ndef build():\n"
        "    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])\n"
        '    model.compile("sgd", "mse", jit_compile=False)\n'
        "    return model\n"
    )
    arguments = ["plan", "small:build", "--batch-size", "512", "--budget", "150%", "--device", "h100"]
    assert main([*arguments, "--save", "plan.json"]) == 0
    assert as_here == ["NVIDIA H100 SXM"]
    assert checkmate_tf.load_plan("plan.json").device.startswith("NVIDIA H100 SXM, not here")
    assert "(compiled)" in capsys.readouterr().out
