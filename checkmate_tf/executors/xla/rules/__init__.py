"""Rules, each in a file of its own, that respond to one behaviour of XLA.

A file's docstring states the behaviour, the version of XLA in which it was seen, and the effect of the rule. `rule`
defines the kinds of rules, and `checkmate_tf.executors.xla.backends` lists the rules of each backend. Each rule has a
test in `tests/executors/xla/rules` on a small step that fails without it. `python -m experiments.xla.ablation` plans
models without each rule.
"""
