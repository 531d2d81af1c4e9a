"""Describes the device that profiles are for: its name in TensorFlow, and the key of its measurements."""

import os
import platform
import re
from pathlib import Path

import tensorflow as tf

from checkmate_tf.profiling.cache import DeviceKey
from checkmate_tf.tf_private import has_onednn


def find_default_device() -> str:
    """Returns the device on which training runs here: the first GPU, or the CPU."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def make_device_key(device: str) -> DeviceKey:
    """Describes a device such as "CPU:0" by its model, its driver and the TensorFlow version.

    The model of a CPU includes the threads that an operation may use, and its math library stands in place of a driver.
    """
    if device.upper().lstrip("/").startswith("CPU"):
        return DeviceKey(
            f"{_read_cpu_model()}, {_count_threads()} threads", tf.__version__, f"oneDNN {_describe_onednn()}"
        )
    gpu = find_physical_gpu(int(device.rpartition(":")[2]))
    details = tf.config.experimental.get_device_details(gpu)
    return DeviceKey(str(details.get("device_name", gpu.name)), tf.__version__, f"NVIDIA {_read_nvidia_driver()}")


def find_physical_gpu(index: int) -> tf.config.PhysicalDevice:
    """Returns the card of a logical GPU. Invisible cards have no logical GPU, and a divided card has several."""
    logical = [
        gpu
        for gpu in tf.config.get_visible_devices("GPU")
        for _ in tf.config.get_logical_device_configuration(gpu) or (None,)
    ]
    return logical[index]


def _read_cpu_model() -> str:
    try:
        names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        names = []
    return names[0].strip() if names else platform.processor() or platform.machine()


def _count_threads() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return tf.config.threading.get_intra_op_parallelism_threads() or available


def _describe_onednn() -> str:
    # By default, oneDNN is on only for some processors. This asks TensorFlow for its decision.
    return "on" if has_onednn() else "off"


def _read_nvidia_driver() -> str:
    try:
        return parse_nvidia_driver(Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return "unknown"


def parse_nvidia_driver(text: str) -> str:
    """Returns the version in the text in which NVIDIA's driver describes itself; "unknown" without one.

    Such a text is "... Kernel Module  535.104.05 ..." or "... Open Kernel Module for x86_64  580.159.04 ...".
    """
    found = re.search(r"Module\b.*?\s(\d+(?:\.\d+)+)", text)
    return found[1] if found else "unknown"
