"""Names of devices, and what is asked of a GPU that is not here."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tensorflow as tf

from checkmate_tf.profiling import device as devices
from checkmate_tf.profiling.device import find_physical_gpu, make_device_key, parse_nvidia_driver
from tests.programs import WITHOUT_OPTIONAL

PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC 12.3.0"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: gcc 12.3.0"


@pytest.mark.parametrize(
    ("text", "version"), [(PROPRIETARY, "535.104.05"), (OPEN, "580.159.04"), ("NVRM version: none", "unknown")]
)
def test_the_driver_is_read_of_either_kernel_module(text, version):
    assert parse_nvidia_driver(text) == version


def test_a_logical_gpu_is_on_the_card_that_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three cards the first is hidden and the second is parted; `get_device_details` is asked of the right one."""
    cards = [SimpleNamespace(name=f"/physical_device:GPU:{number}") for number in range(3)]
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: cards[1:])
    parts = {cards[1].name: ["half", "half"], cards[2].name: None}
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda card: parts[card.name])
    assert [find_physical_gpu(index).name[-1] for index in range(3)] == ["1", "1", "2"]

    details = {card.name: {"device_name": f"card {card.name[-1]}"} for card in cards}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda card: details[card.name])
    monkeypatch.setattr(devices, "_read_nvidia_driver", lambda: "580.159.04")
    assert make_device_key("GPU:0").device == "card 1"
    assert make_device_key("GPU:2").driver == "NVIDIA 580.159.04"


def test_limits_are_those_of_the_devices_that_tensorflow_made() -> None:
    """A CPU that was parted has a second device only by this process's own settings; the same settings limit a GPU."""
    program = (
        f"{WITHOUT_OPTIONAL}import tensorflow as tf\n"
        "cpu, = tf.config.list_physical_devices('CPU')\n"
        "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)\n"
        "from checkmate_tf.tf_private import find_memory_limit\n"
        "print(find_memory_limit('CPU', '1'), find_memory_limit('CPU', '2'))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert ran.stdout.split() == [str(256 << 20), "None"]
