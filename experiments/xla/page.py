"""The page that tells what plans take and cost in steps that XLA compiles."""

from experiments.page_sections import section

SECTIONS = (
    (
        "Twenty-one models, planned",
        "xla.table",
        "Each model is planned for a share of the peak of its stock step. Predicted is the peak of the training graph "
        "in the order of the schedule, compiled what XLA's buffer assignment takes; the latter keeps to the budget. "
        "Compilations are those of one plan, the stock step's included. The least step is the bytes without which no "
        "schedule can do, and the least known what the best schedule that was found takes, where the budget was "
        "refused.",
    ),
    (
        "The two orders of XLA:CPU",
        "xla.orders",
        "XLA:CPU orders a step for its threads, unless `XLA_FLAGS` asks for the order that takes less memory. No plan "
        "is corrected here by what was compiled, so that the rows tell how good the prediction itself is.",
    ),
    (
        "Costs: predicted and measured",
        "xla.costs",
        "Measured costs are times of compiled pieces of the step; a roofline derives them from work and bytes. "
        "Seconds are those of `train_on_batch`, and the measured overhead is the median of pairs.",
    ),
    (
        "The largest batch",
        "xla.max_batch",
        "`max_batch_size` within a budget and at most one forward pass more. A size fits if what XLA compiles it to "
        "does; compilations are those of rematerialized steps.",
    ),
    (
        "Against `tf.recompute_grad` at equal memory",
        "xla.equal_memory",
        "The peer is `tf.recompute_grad` around each block, which is what `keras.remat` calls on TensorFlow. "
        "`rematerialize` gets the memory that the peer's compiled step takes as its budget. Ratios are medians of step "
        "times taken in turn.",
    ),
    (
        "Without one rule",
        "xla.ablation",
        "Each line plans the models without one of the rules in `checkmate_tf/executors/xla/rules`, for XLA:CPU and 60 "
        "% of the stock step's peak, and compares the plans with those by all rules. A model is changed where its "
        "graph or the emitted function differs. More and less memory count the models whose plan, or the least budget "
        "that a refusal names, takes at least 1 % more or less. Overhead, compilations and the milliseconds that the "
        "cost model predicts for a step are sums over the models that were planned either way, without the rule minus "
        "with it. The file of an over-fitted rule says on which model its limits were chosen.",
    ),
)
_HEAD = """# Plans of steps that XLA compiles

Written by `python -m experiments.pages xla.md`. Each section is measured by the command that it names.
"""


def page() -> str:
    """The tables of all experiments in markdown."""
    return "\n".join([_HEAD, *(section(*texts) for texts in SECTIONS)])
