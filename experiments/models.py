"""Networks that several experiments share: a U-Net with batch normalization, and ResNet50."""

from collections.abc import Callable, Sequence
from typing import Any

# Both import Keras when they are called, as their users choose TensorFlow's settings first.


def apply_unit(x: Any, channels: int) -> Any:
    """Applies a convolution, batch normalization and ReLU."""
    from keras import layers

    x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


def apply_two_units(x: Any, channels: int) -> Any:
    """Applies two units, one after the other."""
    return apply_unit(apply_unit(x, channels), channels)


def apply_unet(
    x: Any,
    widths: Sequence[int],
    bottom_width: int,
    *,
    apply_block: Callable[[Any, int], Any] = apply_two_units,
    apply_bottom: Callable[[Any, int], Any] | None = None,
) -> Any:
    """Applies a U-Net with transposed convolutions; the caller adds the head.

    Args:
        widths: the channels of each level, from the top.
        bottom_width: the channels of the lowest level.
        apply_block: what each level applies, on the way down and up.
        apply_bottom: what the lowest level applies; by default a block.
    """
    from keras import layers

    skips = []
    for width in widths:
        x = apply_block(x, width)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = (apply_bottom or apply_block)(x, bottom_width)
    for width, skip in zip(reversed(widths), reversed(skips), strict=True):
        up = layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = apply_block(layers.Concatenate()([up, skip]), width)
    return x


def resnet50(image_size: int = 224, num_classes: int = 1000, activation: str | None = None) -> Any:
    """Returns the ResNet50 of keras.applications with random weights; without an activation it yields logits."""
    import keras

    return keras.applications.ResNet50(
        weights=None,
        input_shape=(image_size, image_size, 3),
        classes=num_classes,
        classifier_activation=activation,
    )
