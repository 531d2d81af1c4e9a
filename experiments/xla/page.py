"""Texts of the page about the memory and cost of plans under XLA."""

from experiments.page_sections import section

SECTIONS = (
    (
        "Twenty-one models, planned",
        "xla.table",
        "Each model is planned for a share of the peak of its stock step. The predicted peak is that of the training "
        "graph in the order of the schedule. The compiled peak is that of XLA's buffer assignment, and stays within "
        "the budget. Compilations are those of one plan, and include the stock step. No schedule takes less than the "
        "least step. If the budget was refused, the least known is the peak of the best schedule that was found.",
    ),
    (
        "The two orders of XLA:CPU",
        "xla.orders",
        "XLA:CPU orders a step for its threads, unless `XLA_FLAGS` selects the order that takes less memory. Plans "
        "are not corrected here after a compilation, so the rows show the error of the prediction alone.",
    ),
    (
        "Costs: predicted and measured",
        "xla.costs",
        "Measured costs are times of compiled pieces of the step; a roofline derives costs from work and bytes. "
        "Seconds are those of `train_on_batch`, and the measured overhead is the median of pairs.",
    ),
    (
        "The largest batch",
        "xla.max_batch",
        "`max_batch_size` runs within a budget and at most one forward pass of overhead. A size fits if its compiled "
        "step does. Compilations are those of rematerialized steps.",
    ),
    (
        "Compared with `tf.recompute_grad` at equal memory",
        "xla.equal_memory",
        "The peer is `tf.recompute_grad` around each block, which `keras.remat` calls on TensorFlow. The budget of "
        "`rematerialize` is the memory of the peer's compiled step. Ratios are medians of step times taken in turn.",
    ),
    (
        "Without one rule",
        "xla.ablation",
        "Each line plans the models without one of the rules in `checkmate_tf/executors/xla/rules`, for XLA:CPU and 60 "
        "% of the stock step's peak, and compares the plans with those by all rules. A model counts as changed if its "
        "graph or the emitted function differs. 'More' and 'less memory' count the models whose plan takes at least "
        "1 % more or less; for a refused budget, the least budget named in the refusal counts. Overhead, compilations "
        "and the milliseconds that the cost model predicts for a step are sums over the models that were planned both "
        "ways, without the rule minus with it. The file of an over-fitted rule names the model on which its limits "
        "were chosen.",
    ),
)
_HEAD = """# Plans of steps that XLA compiles

Written by `python -m experiments.pages xla.md`. Each section names the command that measures it.
"""


def page() -> str:
    """The tables of all experiments in markdown."""
    return "\n".join([_HEAD, *(section(*texts) for texts in SECTIONS)])
