"""What XLA is known to do, and what is changed for it: a rule is one fact, in a file of its own.

A file's docstring says what XLA does, with the version in which it was seen, and what the rule changes. `rule` has the
kinds of rules, `checkmate_tf.executors.xla.backends` lists which hold where. Each has a test on a small step that fails
without it in `tests/executors/xla/rules`, and `python -m experiments.xla.ablation` shows what plans are without it.
"""
