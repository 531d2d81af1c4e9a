"""Small models for the kinds of code that people train: each holds mostly activations, of well over 256 KiB.

Tests and the trial (`python -m experiments.wild.trial`) take them from here by name.
"""

from importlib.util import find_spec

from experiments.wild import generative, hub, images, sequences
from experiments.wild.entry import WildModel

# Those whose package is not installed are left out.
MODELS: dict[str, WildModel] = {
    model.name: model
    for model in (*generative.MODELS, *images.MODELS, *sequences.MODELS, *hub.MODELS)
    if not model.needs or find_spec(model.needs)
}
