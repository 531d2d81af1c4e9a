"""Texts of the page about differences between rematerialized and stock steps."""

from experiments.page_sections import section

SECTIONS = (
    (
        "Nineteen architectures, emitted and run",
        "numbers.nineteen",
        "Differences from the stock step are the largest over gradients, loss, predictions and the state after the "
        "step, relative to each tensor's largest entry. `stock again` is the stock step's repetition, `identity` "
        "follows the input order, node after node, and `rematerialized` repeats three in four forward nodes. The "
        "float16 and bfloat16 models compute in those types.",
    ),
    (
        "Gradients of one step, in float32 and float64",
        "numbers.gradients",
        "The largest difference of a tensor over the tensor's largest entry. Gradients below 1e-5 of the "
        "largest are rounding and left out.",
    ),
    (
        "Two models that amplify rounding",
        "numbers.rounding",
        "The largest difference of a weight from stock training after each step, for the rematerialized step, for the "
        "stock step as a TensorFlow function within the step, and for stock training from weights that differ in their "
        "last bit. MobileNetV2 trains on images of 32 pixels, where batch normalization has few values; a Llama 3 with "
        "weights of 8 bits and LoRA rounds the inputs of its layers to 8 bits.",
    ),
    (
        "A thousand steps on real data",
        "numbers.training",
        "Each training against the stock one of the same task, by every tenth loss: the largest relative difference in "
        'the first tenth of the steps and in all of them, and the first step at which a loss differs. "Bit for bit" '
        'compares all losses and all weights after the last step. "Last bit" is stock training from weights that '
        "differ in their last bit. The mean loss is of the last tenth. The deterministic trainings run after "
        "`tf.config.experimental.enable_op_determinism()`.",
    ),
)
_HEAD = """# Numbers, rematerialized against stock

Written by `python -m experiments.pages numbers.md`. Each section is measured by the command that it names.
"""


def page() -> str:
    """The tables of all experiments in markdown."""
    return "\n".join([_HEAD, *(section(*texts) for texts in SECTIONS)])
