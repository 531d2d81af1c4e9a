"""Every rule has a file, a test of its own, and a place in a backend."""

from pathlib import Path

from checkmate_tf.executors.xla import rules
from checkmate_tf.executors.xla.backends import CPU, GPU

_NO_RULES = {"__init__", "rule", "known_shapes"}


def test_every_rule_has_a_test_and_a_backend() -> None:
    files = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - _NO_RULES
    tests = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")} - {"every_rule"}
    listed = {rule.name for backend in (CPU, GPU) for rule in backend.rules}
    assert files == tests == listed
