from checkmate_tf.executors.xla.backends import CPU
from tests.executors.xla.rules.steps import count_ties, emit
from tests.executors.xla.test_xla import noisy


def test_random_numbers_wait_for_what_comes_before_them() -> None:
    assert count_ties(emit(noisy, CPU)) > count_ties(emit(noisy, CPU.without("sources_wait")))
