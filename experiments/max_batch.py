"""The largest batch of a model within a memory budget: a script to copy.

    TF_ENABLE_ONEDNN_OPTS=1 python experiments/max_batch.py --budget 2GiB

On a CPU the allocator counts memory only with oneDNN on. Put a model of your own in the place of `unet`.
"""

import argparse
from typing import Any

import checkmate_tf


def unet() -> Any:
    """A U-Net for images of 128 x 128: three levels, convolutions with batch normalization."""
    import keras
    from keras import layers

    def unit(x: Any, channels: int) -> Any:
        x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
        return layers.ReLU()(layers.BatchNormalization()(x))

    image = keras.Input((128, 128, 3))
    high = unit(unit(image, 8), 8)
    middle = unit(unit(layers.MaxPooling2D()(high), 16), 16)
    low = unit(unit(layers.MaxPooling2D()(middle), 32), 32)
    x = unit(layers.Concatenate()([layers.Conv2DTranspose(16, 2, strides=2)(low), middle]), 16)
    x = unit(layers.Concatenate()([layers.Conv2DTranspose(8, 2, strides=2)(x), high]), 8)
    model = keras.Model(image, layers.Conv2D(4, 1, activation="softmax")(x), name="unet")
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy", jit_compile=False)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="auto", help='bytes, "6GiB" or "auto", what the device has free')
    parser.add_argument("--max-overhead", default="one forward pass", help='or a share such as "10%%"')
    options = parser.parse_args()
    model = unet()
    found = checkmate_tf.max_batch_size(model, budget=options.budget, max_overhead=options.max_overhead)
    print(found)
    found.install()
    # Train as before: model.fit(x, y, batch_size=found.batch_size)


if __name__ == "__main__":
    main()
