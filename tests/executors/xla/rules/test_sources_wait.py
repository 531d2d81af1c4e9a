import pytest

from checkmate_tf.executors.xla.backend import Backend
from checkmate_tf.executors.xla.backends import CPU, GPU
from tests.executors.xla.rules.steps import count_ties, emit
from tests.executors.xla.test_xla import noisy


@pytest.mark.parametrize("backend", [CPU, GPU], ids=["cpu", "gpu"])
def test_random_numbers_wait_for_what_comes_before_them(backend: Backend) -> None:
    assert count_ties(emit(noisy, backend)) > count_ties(emit(noisy, backend.without("sources_wait")))
