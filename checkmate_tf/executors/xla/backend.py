"""Names the backends that XLA compiles for: they keep different ties, and need different ones.

- "cpu" (XLA:CPU of TensorFlow 2.21) strips barriers before it merges equal operations, so that ties are selects. It
  runs whatever it can as soon as its operands exist, and transposes what filter gradients read: backward nodes read
  late what they read of the forward pass, and some operations are written otherwise than TensorFlow lowers them.
- "gpu" (XLA:GPU, seen on an H100) keeps barriers, and orders what it runs for memory. It writes and sums in one kernel
  what a barrier between them would have it write, and read again: only recomputation and what would be computed too
  early is tied.
"""

from typing import Literal

Backend = Literal["cpu", "gpu"]


def find_backend(device: str) -> Backend:
    """Finds the backend of a device such as "CPU:0"."""
    return "cpu" if device.startswith("CPU") else "gpu"
