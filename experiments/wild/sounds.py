"""Models of sounds and of written lines after public examples."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from experiments.wild.entry import Arrays, WildModel, classes, compile_classifier, normal


def build_wave_network() -> keras.Model:
    """Gated, dilated convolutions that read earlier samples only; each adds to what is said in the end."""
    sound = hidden = keras.Input((1024, 1))
    hidden = layers.Conv1D(24, 2, padding="causal")(hidden)
    said = []
    for rate in (1, 2, 4, 8, 16, 32):
        kept = layers.Conv1D(24, 2, padding="causal", dilation_rate=rate, activation="tanh")(hidden)
        gate = layers.Conv1D(24, 2, padding="causal", dilation_rate=rate, activation="sigmoid")(hidden)
        gated = layers.Multiply()([kept, gate])
        said.append(layers.Conv1D(24, 1)(gated))
        hidden = layers.Add()([hidden, layers.Conv1D(24, 1)(gated)])
    hidden = layers.Conv1D(48, 1, activation="relu")(layers.ReLU()(layers.Add()(said)))
    return compile_classifier(keras.Model(sound, layers.Conv1D(64, 1)(hidden)))


def _samples(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 1024, 1), classes(random, 64, rows, 1024)


def _loss_of_voices(y_true: Any, y_pred: Any) -> Any:
    """The error of two voices in decibels, in whichever order of them it is less."""

    def ratio(wanted: Any, found: Any) -> Any:
        wanted, found = (each - ops.mean(each, axis=-1, keepdims=True) for each in (wanted, found))
        share = ops.sum(wanted * found, -1, keepdims=True) / (ops.sum(wanted**2, -1, keepdims=True) + 1e-8)
        kept = share * wanted
        quotient = ops.sum(kept**2, -1) / (ops.sum((found - kept) ** 2, -1) + 1e-8)
        return 10 * ops.log(quotient + 1e-8) / ops.log(10.0)

    straight = ops.mean(ratio(y_true, y_pred), axis=-1)
    crossed = ops.mean(ratio(y_true[:, ::-1], y_pred), axis=-1)
    return -ops.mean(ops.maximum(straight, crossed))


def build_voices() -> keras.Model:
    sound = keras.Input((4096, 1))
    coded = layers.Conv1D(64, 16, strides=8, padding="same", activation="relu")(sound)
    hidden = layers.Conv1D(48, 1)(layers.LayerNormalization()(coded))
    for rate in (1, 2, 4, 8):
        branch = layers.GroupNormalization(groups=1)(layers.PReLU(shared_axes=[1])(layers.Conv1D(96, 1)(hidden)))
        branch = layers.SeparableConv1D(96, 3, padding="same", dilation_rate=rate)(branch)
        branch = layers.GroupNormalization(groups=1)(layers.PReLU(shared_axes=[1])(branch))
        hidden = layers.Add()([hidden, layers.Conv1D(48, 1)(branch)])
    masks = layers.Reshape((512, 2, 64))(layers.Conv1D(128, 1, activation="sigmoid")(hidden))
    apart = layers.Permute((2, 1, 3))(layers.Multiply()([masks, layers.Reshape((512, 1, 64))(coded)]))
    back = layers.Conv1DTranspose(1, 16, strides=8, padding="same")
    voices = ops.stack([ops.squeeze(back(apart[:, number]), -1) for number in range(2)], axis=1)
    model = keras.Model(sound, voices)
    model.compile(keras.optimizers.Adam(1e-3, clipnorm=5.0), _loss_of_voices)
    return model


def _mixtures(random: np.random.Generator, rows: int) -> Arrays:
    voices = normal(random, rows, 2, 4096)
    return voices.sum(axis=1)[..., None], voices


class Spectrogram(layers.Layer):
    """Loudness by time and frequency, from a Fourier transform of overlapping windows."""

    def call(self, sound: Any) -> Any:
        parts = tf.signal.stft(sound, frame_length=256, frame_step=64)
        return tf.math.log(tf.abs(parts) + 1e-3)[..., None]


def build_commands() -> keras.Model:
    sound = keras.Input((8000,))
    hidden = layers.Resizing(96, 96)(Spectrogram()(sound))
    hidden = layers.BatchNormalization(axis=-1)(hidden)
    for filters in (24, 48):
        hidden = layers.Conv2D(filters, 3, activation="relu")(hidden)
    hidden = layers.Dropout(0.25)(layers.MaxPooling2D()(hidden))
    hidden = layers.Dense(128, activation="relu")(layers.Flatten()(layers.MaxPooling2D(4)(hidden)))
    return compile_classifier(keras.Model(sound, layers.Dense(8)(layers.Dropout(0.5)(hidden))), rate=1e-3)


def _sounds(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 8000), classes(random, 8, rows)


def build_speakers() -> keras.Model:
    """One-dimensional residual blocks over the halves of a Fourier transform that is taken in the data set."""
    waves = hidden = keras.Input((2000, 1))
    for filters, number in ((16, 2), (32, 2), (48, 3)):
        skipped = layers.Conv1D(filters, 1, padding="same")(hidden)
        for _ in range(number - 1):
            hidden = layers.Activation("relu")(layers.Conv1D(filters, 3, padding="same")(hidden))
        hidden = layers.Add()([layers.Conv1D(filters, 3, padding="same")(hidden), skipped])
        hidden = layers.MaxPooling1D(2, strides=2)(layers.Activation("relu")(hidden))
    hidden = layers.Flatten()(layers.AveragePooling1D(5, strides=5)(hidden))
    hidden = layers.Dense(64, activation="relu")(hidden)
    model = keras.Model(waves, layers.Dense(5, activation="softmax")(hidden))
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _transformed(arrays: Arrays, batch_size: int) -> tf.data.Dataset:
    rows = tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)
    return rows.map(lambda sound, kind: (tf.abs(tf.signal.rfft(sound))[:, 1:2001, None], kind)).prefetch(1)


def _long_sounds(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 4000), classes(random, 5, rows)


class ReadLine(layers.Layer):
    """Adds the loss of a sequence that says fewer letters than it has places (CTC); gives chances of letters."""

    def call(self, letters: Any, found: Any) -> Any:
        wanted = tf.sparse.from_dense(1 + tf.cast(letters, tf.int32))
        lengths = tf.fill(tf.shape(found)[:1], found.shape[1])
        each = tf.nn.ctc_loss(wanted, found, None, lengths, logits_time_major=False, blank_index=0)
        self.add_loss(tf.reduce_mean(each))
        return tf.nn.softmax(found)


def build_lines() -> keras.Model:
    images, letters = keras.Input((128, 32, 1), name="image"), keras.Input((8,), name="label")
    hidden = images
    for filters in (16, 32):
        for _ in range(2):
            hidden = layers.Conv2D(filters, 3, padding="same", activation="relu")(hidden)
        hidden = layers.MaxPooling2D()(hidden)
    hidden = layers.Reshape((32, 8 * 32))(hidden)
    hidden = layers.Dropout(0.2)(layers.Dense(64, activation="relu")(hidden))
    hidden = layers.Bidirectional(layers.LSTM(48, return_sequences=True, dropout=0.25))(hidden)
    found = layers.Dense(21)(hidden)
    model = keras.Model([images, letters], ReadLine()(letters, found))
    model.compile(keras.optimizers.Adam(1e-3))
    return model


def _lines(random: np.random.Generator, rows: int) -> Arrays:
    letters = classes(random, 19, rows, 8).astype("float32")
    return ({"image": normal(random, rows, 128, 32, 1), "label": letters},)


def _ctc(y_true: Any, y_pred: Any) -> Any:
    rows = ops.shape(y_true)[0]
    lengths = (ops.full((rows,), y_pred.shape[1], "int32"), ops.full((rows,), y_true.shape[1], "int32"))
    return ops.ctc_loss(y_true, y_pred, lengths[1], lengths[0])


def build_speech() -> keras.Model:
    spectrogram = keras.Input((200, 65))
    hidden = layers.Reshape((200, 65, 1))(spectrogram)
    for strides in (2, 1):
        hidden = layers.Conv2D(16, (7, 11), strides=strides, padding="same", use_bias=False)(hidden)
        hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
    hidden = layers.Reshape((100, 33 * 16))(hidden)
    for _ in range(2):
        hidden = layers.Bidirectional(layers.GRU(48, return_sequences=True, reset_after=True))(hidden)
        hidden = layers.Dropout(0.5)(hidden)
    model = keras.Model(spectrogram, layers.Dense(28)(layers.Dense(96, activation="relu")(hidden)))
    model.compile(keras.optimizers.Adam(1e-4), _ctc)
    return model


def _spoken(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 200, 65), 1 + classes(random, 27, rows, 20)


_AUDIO = "keras.io/examples/audio/"
MODELS = (
    WildModel(
        "wave_network",
        "gated causal convolutions, one sum of all layers",
        build_wave_network,
        _samples,
        12,
        after="WaveNet (keras-tcn, tensorflow-wavenet)",
    ),
    WildModel(
        "voices",
        "separates two voices; the loss tries both orders",
        build_voices,
        _mixtures,
        12,
        after="Conv-TasNet; keras.io/examples/audio/vocal_track_separation",
    ),
    WildModel(
        "commands",
        "a spectrogram within the model",
        build_commands,
        _sounds,
        12,
        after="tensorflow.org/tutorials/audio/simple_audio",
    ),
    WildModel(
        "speakers",
        "Fourier transforms in the data set",
        build_speakers,
        _long_sounds,
        24,
        dataset=_transformed,
        after=_AUDIO + "speaker_recognition_using_cnn",
    ),
    WildModel(
        "lines",
        "a layer adds the loss, CTC, loops in both directions",
        build_lines,
        _lines,
        24,
        after="keras.io/examples/vision/captcha_ocr",
    ),
    WildModel("speech", "CTC as a compiled loss, GRUs", build_speech, _spoken, 16, after=_AUDIO + "ctc_asr"),
)
