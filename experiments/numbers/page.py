"""Texts of the page about differences between rematerialized and stock steps."""

from experiments.page_sections import section

SECTIONS = (
    (
        "Nineteen architectures, emitted and run",
        "numbers.nineteen",
        "Differences from the stock step are the largest over gradients, loss, predictions and the state after the "
        "step, relative to each tensor's largest entry. `stock again` repeats the stock step, `identity` follows "
        "the input order, node after node, and `rematerialized` repeats three in four forward nodes. The float16 "
        "and bfloat16 models compute in those types.",
    ),
    (
        "Gradients of one step, in float32 and float64",
        "numbers.gradients",
        "The figures are the largest difference of a tensor, relative to its largest entry. Gradients below 1e-5 of "
        "the largest are rounding errors, and are left out.",
    ),
    (
        "Two models that amplify rounding",
        "numbers.rounding",
        "The figures are the largest difference of a weight from stock training after each step: for the "
        "rematerialized step, for the stock step as a TensorFlow function within the step, and for stock training "
        "from weights that differ in their last bit. MobileNetV2 trains on images of 32 pixels, where batch "
        "normalization has few values. A Llama 3 with 8-bit weights and LoRA rounds the inputs of its layers to 8 "
        "bits.",
    ),
    (
        "A thousand steps on real data",
        "numbers.training",
        "Each training is compared with the stock training of the same task, by every tenth loss. The table shows the "
        "largest relative difference in the first tenth of the steps and in all of them, and the first step at which a "
        'loss differs. "Bit for bit" compares all losses, and all weights after the last step. "Last bit" is stock '
        "training from weights that differ in their last bit. The mean loss is that of the last tenth. The "
        "deterministic trainings run after `tf.config.experimental.enable_op_determinism()`.",
    ),
)
_HEAD = """# Numbers of rematerialized and stock training

Written by `python -m experiments.pages numbers.md`. Each section names the command that measures it.
"""


def page() -> str:
    """The tables of all experiments in markdown."""
    return "\n".join([_HEAD, *(section(*texts) for texts in SECTIONS)])
