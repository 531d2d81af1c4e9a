"""The architectures of the Checkmate paper as Keras models: classification at 224 x 224, segmentation at 416 x 608."""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from experiments.models import resnet50

CLASSIFICATION_SHAPE = (224, 224, 3)
SEGMENTATION_SHAPE = (416, 608, 3)
NUM_CLASSES = 19


def vgg16() -> keras.Model:
    return keras.applications.VGG16(weights=None, input_shape=CLASSIFICATION_SHAPE)


def vgg19() -> keras.Model:
    return keras.applications.VGG19(weights=None, input_shape=CLASSIFICATION_SHAPE)


def mobilenet() -> keras.Model:
    return keras.applications.MobileNet(weights=None, input_shape=CLASSIFICATION_SHAPE)


def unet() -> keras.Model:
    """Ronneberger et al. (2015), with padding so that output and input have the same size."""
    image = x = layers.Input(SEGMENTATION_SHAPE)
    skips = []
    for filters in (64, 128, 256, 512):
        x = _two_convolutions(x, filters)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dropout(0.5)(_two_convolutions(x, 1024))
    for filters in (512, 256, 128, 64):
        x = layers.Conv2D(filters, 2, padding="same", activation="relu")(layers.UpSampling2D()(x))
        x = _two_convolutions(layers.Concatenate()([skips.pop(), x]), filters)
    return _segmentation(image, layers.Conv2D(NUM_CLASSES, 1)(x))


def vgg_unet() -> keras.Model:
    """A U-Net on VGG16's convolutions: it ends at half the image's resolution, and all that it joins is pooled."""
    image = layers.Input(SEGMENTATION_SHAPE)
    first, second, third, x, _ = _vgg_levels(image)
    for filters, skip in ((512, third), (256, second), (128, first), (64, None)):
        x = layers.Conv2D(filters, 3, activation="relu")(layers.ZeroPadding2D()(x))
        x = layers.BatchNormalization()(x)
        if skip is not None:
            x = layers.Concatenate()([layers.UpSampling2D()(x), skip])
    return _segmentation(image, layers.Conv2D(NUM_CLASSES, 3, padding="same")(x))


def fcn8() -> keras.Model:
    """Long et al. (2015), FCN-8s on VGG16's convolutions: 36 layers."""
    image = layers.Input(SEGMENTATION_SHAPE)
    levels = _vgg_levels(image)
    x = levels[4]
    for size in (7, 1):
        x = layers.Conv2D(4096, size, padding="same", activation="relu")(x)
        x = layers.Dropout(0.5)(x)
    x = layers.Conv2D(NUM_CLASSES, 1)(x)
    for level in (3, 2):
        x = layers.Conv2DTranspose(NUM_CLASSES, 4, strides=2, use_bias=False)(x)
        score = layers.Conv2D(NUM_CLASSES, 1)(levels[level])
        for axis in (1, 2):
            spare = x.shape[axis] - score.shape[axis]
            x = layers.Cropping2D(((0, spare), (0, 0)) if axis == 1 else ((0, 0), (0, spare)))(x)
        x = layers.Add()([x, score])
    return _segmentation(image, layers.Conv2DTranspose(NUM_CLASSES, 16, strides=8, use_bias=False)(x))


def segnet() -> keras.Model:
    """Badrinarayanan et al. (2017) on four levels of VGG16, with upsampling in place of pooling indices."""
    image = layers.Input(SEGMENTATION_SHAPE)
    x = _vgg_levels(image)[3]
    for index, filters in enumerate((512, 256, 128, 64)):
        if index:
            x = layers.UpSampling2D()(x)
        x = layers.Conv2D(filters, 3)(layers.ZeroPadding2D()(x))
        x = layers.BatchNormalization()(x)
    return _segmentation(image, layers.Conv2D(NUM_CLASSES, 3, padding="same")(x))


MODELS: dict[str, Callable[[], keras.Model]] = {
    "vgg16": vgg16,
    "vgg19": vgg19,
    "mobilenet": mobilenet,
    "resnet50": lambda: resnet50(activation="softmax"),
    "unet": unet,
    "vgg_unet": vgg_unet,
    "fcn8": fcn8,
    "segnet": segnet,
}


def _vgg_levels(x: Any) -> list[Any]:
    """The outputs of VGG16's five pooling layers."""
    levels = []
    for filters, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
        levels.append(x)
    return levels


def _two_convolutions(x: Any, filters: int) -> Any:
    for _ in range(2):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    return x


def _segmentation(image: Any, x: Any) -> keras.Model:
    """Scores to class probabilities of each pixel."""
    x = layers.Reshape((x.shape[1] * x.shape[2], NUM_CLASSES))(x)
    return keras.Model(image, layers.Activation("softmax")(x))
