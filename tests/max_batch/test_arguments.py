"""Where another process may run a step on the GPU that this one uses."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from checkmate_tf.errors import BudgetError
from checkmate_tf.executors.step import ResidentBytes
from checkmate_tf.max_batch import arguments
from checkmate_tf.max_batch.arguments import check_device_is_shared, parse_budget_bytes
from checkmate_tf.planning.options import Options, Request

NOT_COMPILED = SimpleNamespace(jit_compile=False)


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, *, growth: bool, parts: list | None = None, **variables: str) -> None:
    """A visible card, and one that is hidden and whose settings do not matter."""
    for name in ("TF_GPU_ALLOCATOR", "TF_FORCE_GPU_ALLOW_GROWTH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(arguments, "find_default_device", lambda: "GPU:0")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["card", "hidden"])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["card"])
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda card: parts)
    monkeypatch.setattr(tf.config.experimental, "get_memory_growth", lambda card: growth and card == "card")


LIMITED = tf.config.LogicalDeviceConfiguration(memory_limit=4096)
WHOLE = tf.config.LogicalDeviceConfiguration()


@pytest.mark.parametrize(
    ("growth", "parts", "variables"),
    [
        (True, None, {}),
        (False, [LIMITED], {}),
        (False, None, {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}),
        (False, None, {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}),
    ],
)
def test_another_process_finds_memory(monkeypatch, growth, parts, variables):
    pretend_gpu(monkeypatch, growth=growth, parts=parts, **variables)
    check_device_is_shared(NOT_COMPILED)


@pytest.mark.parametrize(
    ("growth", "parts", "variables"),
    [(False, None, {}), (False, [WHOLE], {}), (True, None, {"TF_FORCE_GPU_ALLOW_GROWTH": "false"})],
)
def test_a_process_that_took_the_whole_card_is_refused(monkeypatch, growth, parts, variables):
    pretend_gpu(monkeypatch, growth=growth, parts=parts, **variables)
    with pytest.raises(BudgetError, match="set_memory_growth"):
        check_device_is_shared(NOT_COMPILED)


def test_nothing_runs_where_xla_compiles(monkeypatch):
    pretend_gpu(monkeypatch, growth=False)
    check_device_is_shared(SimpleNamespace(jit_compile=True))


def test_what_is_free_is_for_the_batch_too(monkeypatch):
    """Only the variables are on the device before the budget is asked for."""
    monkeypatch.setattr(arguments, "find_free_bytes", lambda device, margin: 1000)
    resident = ResidentBytes(parameters=100, optimizer=20, other_state=3, batch=400, prefetched=50)
    step = SimpleNamespace(count_resident_bytes=lambda size: resident)
    assert parse_budget_bytes(Request("auto"), step, 8) == 900 + 123
    assert parse_budget_bytes(Request("auto", options=Options(margin="25%")), step, 8) == 750 + 123
    assert parse_budget_bytes(Request(1123), step, 8) == 1123
    assert parse_budget_bytes(Request(1123, options=Options(margin=0.1)), step, 8) == 900 + 123
