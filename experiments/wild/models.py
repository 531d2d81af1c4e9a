"""Small models for the kinds of code that people train: each holds mostly activations, of well over 256 KiB.

Tests and the trial (`python -m experiments.wild.trial`) take them from here by name.
"""

from importlib.util import find_spec

from experiments.wild import (
    classifiers,
    generative,
    hub,
    images,
    language,
    loops,
    scenes,
    sequences,
    sounds,
    tables,
    unlabelled,
)
from experiments.wild.entry import WildLoop, WildModel

ROOMS = (generative, images, sequences, hub, classifiers, scenes, unlabelled, language, tables, sounds)

# Those whose package is not installed are left out.
MODELS: dict[str, WildModel] = {
    model.name: model for room in ROOMS for model in room.MODELS if not model.needs or find_spec(model.needs)
}
LOOPS: dict[str, WildLoop] = {loop.name: loop for loop in loops.LOOPS}
