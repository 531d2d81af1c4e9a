"""KerasHub's models, small and with random weights: what people fine-tune, each by its own task.

Some get text, which their preprocessor splits by a vocabulary that is made here; the others get arrays.
"""

import io
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.wild.entry import Arrays, WildModel, classes, normal

NUM_TOKENS, LENGTH = 1_000, 128
_WORDS = ("we", "saw", "one", "small", "boat", "far", "out", "on", "calm", "green", "water", "and", "it", "went")
_GROUPED_HEADS = {"num_query_heads": 4, "num_key_value_heads": 2}


def _part(name: str) -> Any:
    """A class of KerasHub, which need not be installed where nothing is built."""
    return getattr(import_module("keras_hub").models, name)


def _optimizer() -> keras.Optimizer:
    return keras.optimizers.SGD(0.01, momentum=0.9)


def _task(name: str, backbone: keras.Model, **settings: Any) -> keras.Model:
    model = _part(name)(backbone=backbone, **settings)
    model.compile(_optimizer())
    return model


def build_causal(family: str, num_layers: int = 3, preprocessor: Any = None, **settings: Any) -> keras.Model:
    """A language model that tells the next token, by the loss of its task."""
    sizes = {"vocabulary_size": NUM_TOKENS, "num_layers": num_layers, "hidden_dim": 128, "intermediate_dim": 384}
    backbone = _part(f"{family}Backbone")(**sizes | settings)
    return _task(f"{family}CausalLM", backbone, preprocessor=preprocessor)


def build_lora(build: Callable[..., keras.Model], num_layers: int = 3, *, quantized: bool = False) -> keras.Model:
    """A language model of which small matrices beside the frozen weights train; those in 8 bits if `quantized`."""
    model = build(num_layers)
    if quantized:
        model.quantize("int8")
    model.backbone.enable_lora(4)
    model.compile(_optimizer())
    return model


def build_last_block_only(num_layers: int = 3) -> keras.Model:
    """Llama 3 with all frozen but its last block and what comes after."""
    model = build_llama3(num_layers)
    for layer in model.backbone.layers[:-2]:
        layer.trainable = False
    model.compile(_optimizer())
    return model


def build_llama3(num_layers: int = 3) -> keras.Model:
    return build_causal("Llama3", num_layers, **_GROUPED_HEADS)


def build_gpt2(num_layers: int = 3) -> keras.Model:
    preprocessor = _part("GPT2CausalLMPreprocessor")(_byte_pairs("GPT2Tokenizer"), sequence_length=LENGTH)
    return build_causal("GPT2", num_layers, preprocessor, num_heads=4, max_sequence_length=LENGTH)


def build_gemma2(num_layers: int = 3) -> keras.Model:
    preprocessor = _part("GemmaCausalLMPreprocessor")(_sentence_pieces("GemmaTokenizer"), sequence_length=LENGTH)
    caps = {"attention_logit_soft_cap": 50, "final_logit_soft_cap": 30}
    norms = {"use_post_ffw_norm": True, "use_post_attention_norm": True}
    windows = {"use_sliding_window_attention": True, "sliding_window_size": 64}
    return build_causal("Gemma", num_layers, preprocessor, head_dim=32, **_GROUPED_HEADS, **caps, **norms, **windows)


def build_gemma3(num_layers: int = 3) -> keras.Model:
    windows = {"use_sliding_window_attention": True, "sliding_window_size": 64}
    norms = {"use_post_ffw_norm": True, "use_post_attention_norm": True}
    return build_causal("Gemma3", num_layers, image_size=None, head_dim=32, **_GROUPED_HEADS, **norms, **windows)


def build_masked(family: str, num_layers: int = 3) -> keras.Model:
    """A language model that tells masked tokens; without a preprocessor, which masks others in each run."""
    return _task(f"{family}MaskedLM", _encoder(family, num_layers))


def _encoder(family: str, num_layers: int) -> keras.Model:
    return _part(f"{family}Backbone")(
        vocabulary_size=NUM_TOKENS,
        num_layers=num_layers,
        num_heads=4,
        hidden_dim=128,
        intermediate_dim=384,
        max_sequence_length=LENGTH,
    )


def build_roberta(num_layers: int = 3) -> keras.Model:
    tokenizer = _byte_pairs("RobertaTokenizer", "<s>", "<pad>", "</s>", "<mask>")
    preprocessor = _part("RobertaTextClassifierPreprocessor")(tokenizer, sequence_length=LENGTH)
    backbone = _encoder("Roberta", num_layers)
    return _task("RobertaTextClassifier", backbone, num_classes=3, preprocessor=preprocessor)


def build_t5(num_layers: int = 2) -> keras.Model:
    backbone = _part("T5Backbone")(NUM_TOKENS, num_layers, num_heads=4, hidden_dim=128, intermediate_dim=256)
    return _task("T5Seq2SeqLM", backbone)


def build_bart(num_layers: int = 2) -> keras.Model:
    tokenizer = _byte_pairs("BartTokenizer", "<s>", "<pad>", "</s>", "<mask>")
    lengths = {"encoder_sequence_length": LENGTH, "decoder_sequence_length": LENGTH // 2}
    preprocessor = _part("BartSeq2SeqLMPreprocessor")(tokenizer, **lengths)
    return _task("BartSeq2SeqLM", _encoder("Bart", num_layers), preprocessor=preprocessor)


def build_whisper(num_layers: int = 2) -> keras.Model:
    """Tells the next token of what is said; KerasHub has Whisper's encoder and decoder and no task for them."""
    backbone = _part("WhisperBackbone")(
        NUM_TOKENS,
        num_layers,
        num_heads=4,
        hidden_dim=128,
        intermediate_dim=384,
        max_encoder_sequence_length=2 * LENGTH,
        max_decoder_sequence_length=LENGTH // 2,
    )
    logits = backbone.token_embedding(backbone.output["decoder_sequence_output"], reverse=True)
    model = keras.Model(backbone.input, logits)
    model.compile(_optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def build_vit(num_layers: int = 4) -> keras.Model:
    backbone = _part("ViTBackbone")((64, 64, 3), 4, num_layers, num_heads=4, hidden_dim=96, mlp_dim=384)
    return _task("ViTImageClassifier", backbone, num_classes=10)


def build_segformer(num_stages: int = 3) -> keras.Model:
    encoder = _part("MiTBackbone")(
        image_shape=(96, 96, 3),
        num_layers=num_stages,
        hidden_dims=[32, 64, 96, 128][:num_stages],
        layerwise_depths=[2] * num_stages,
        layerwise_num_heads=[1, 2, 3, 4][:num_stages],
        layerwise_sr_ratios=[8, 4, 2, 1][:num_stages],
        layerwise_patch_sizes=[7, 3, 3, 3][:num_stages],
        layerwise_strides=[4, 2, 2, 2][:num_stages],
        max_drop_path_rate=0.1,
    )
    backbone = _part("SegFormerBackbone")(image_encoder=encoder, projection_filters=64)
    model = _part("SegFormerImageSegmenter")(backbone=backbone, num_classes=5)
    model.compile(
        _optimizer(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["sparse_categorical_accuracy"],
    )
    return model


def build_diffusion(num_layers: int = 3) -> keras.Model:
    """Stable Diffusion 3's transformer, which tells noise from image in latents."""
    mmdit = import_module("keras_hub.src.models.stable_diffusion_3.mmdit").MMDiT
    model = mmdit(
        patch_size=2,
        hidden_dim=96,
        num_layers=num_layers,
        num_heads=4,
        position_size=32,
        latent_shape=(32, 32, 8),
        context_shape=(32, 64),
        pooled_projection_shape=(64,),
        qk_norm="rms_norm",
    )
    model.compile(_optimizer(), "mse")
    return model


def _byte_pairs(name: str, *special: str) -> Any:
    """A tokenizer that has a token for each byte and for some pairs of letters."""
    from tokenizers.pre_tokenizers import ByteLevel

    merges = ["w a", "o n", "wa t", "a n", "e r"]
    pairs = [merge.replace(" ", "") for merge in merges]
    known = [*(special or ("<|endoftext|>",)), *sorted(ByteLevel.alphabet()), *pairs]
    return _part(name)(vocabulary={token: index for index, token in enumerate(known)}, merges=merges)


def _sentence_pieces(name: str) -> Any:
    """A tokenizer of pieces that are learned here from made-up sentences."""
    import sentencepiece

    model = io.BytesIO()
    special = ("pad", "eos", "bos", "unk")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_sentences(np.random.default_rng(0), 100)),
        model_writer=model,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        **{f"{part}_id": index for index, part in enumerate(special)},
        **{f"{part}_piece": f"<{part}>" for part in special},
        user_defined_symbols=["<start_of_turn>", "<end_of_turn>"],
    )
    return _part(name)(model.getvalue())


def _sentences(random: np.random.Generator, rows: int) -> list[str]:
    return [" ".join(random.choice(_WORDS, size=size)) for size in random.integers(60, 120, size=rows)]


def _texts(random: np.random.Generator, rows: int) -> Arrays:
    return (tf.constant(_sentences(random, rows)),)


def _labelled_texts(random: np.random.Generator, rows: int) -> Arrays:
    return *_texts(random, rows), classes(random, 3, rows)


def _text_pairs(random: np.random.Generator, rows: int) -> Arrays:
    return ({"encoder_text": _texts(random, rows)[0], "decoder_text": _texts(random, rows)[0]},)


def tokens(random: np.random.Generator, rows: int, length: int = LENGTH) -> Arrays:
    """Tokens of rows of which the last quarter is padding, those that follow them, and which of these count."""
    tokens, counted = classes(random, NUM_TOKENS, rows, length + 1), np.ones((rows, length), "int32")
    counted[3 * rows // 4 :, length // 2 :] = 0
    return {"token_ids": tokens[:, :-1], "padding_mask": counted}, tokens[:, 1:], counted.astype("float32")


def _masked_tokens(random: np.random.Generator, rows: int) -> Arrays:
    """Tokens of which some are masked: where these are, what stands there, and that each counts."""
    given, _, _ = tokens(random, rows)
    positions = np.sort(random.permuted(np.tile(np.arange(LENGTH // 2, dtype="int32"), (rows, 1)), axis=1)[:, :16])
    hidden = np.take_along_axis(given["token_ids"], positions, axis=1)
    np.put_along_axis(given["token_ids"], positions, NUM_TOKENS - 1, axis=1)
    return given | {"mask_positions": positions}, hidden, np.ones(hidden.shape, "float32")


def _masked_segments(random: np.random.Generator, rows: int) -> Arrays:
    given, hidden, counted = _masked_tokens(random, rows)
    return given | {"segment_ids": np.zeros_like(given["token_ids"])}, hidden, counted


def _token_pairs(random: np.random.Generator, rows: int) -> Arrays:
    given, _, _ = tokens(random, rows)
    written, next_tokens, counted = tokens(random, rows, LENGTH // 2)
    named = {f"encoder_{key}": value for key, value in given.items()}
    return named | {f"decoder_{key}": value for key, value in written.items()}, next_tokens, counted


def _sounds(random: np.random.Generator, rows: int) -> Arrays:
    written, next_tokens, _ = tokens(random, rows, LENGTH // 2)
    named = {f"decoder_{key}": value for key, value in written.items()}
    return {"encoder_features": normal(random, rows, 2 * LENGTH, 80)} | named, next_tokens


def _images(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 64, 64, 3), classes(random, 10, rows)


def _images_and_masks(random: np.random.Generator, rows: int) -> Arrays:
    return normal(random, rows, 96, 96, 3), classes(random, 5, rows, 96, 96)


def _noisy_latents(random: np.random.Generator, rows: int) -> Arrays:
    x = {
        "latent": normal(random, rows, 32, 32, 8),
        "context": normal(random, rows, 32, 64),
        "pooled_projection": normal(random, rows, 64),
        "timestep": random.random((rows, 1), dtype="float32"),
    }
    return x, normal(random, rows, 32, 32, 8)


def _models() -> Iterator[WildModel]:
    causal: dict[str, tuple[str, Callable[..., keras.Model]]] = {
        "gemma3": ("local and global attention, norms before and after", build_gemma3),
        "llama3": ("grouped queries, rotary positions", build_llama3),
        "llama3_lora": ("LoRA on frozen weights", partial(build_lora, build_llama3)),
        "llama3_int8_lora": ("LoRA on frozen weights of 8 bits", partial(build_lora, build_llama3, quantized=True)),
        "llama3_last_block": ("all but the last block frozen", build_last_block_only),
        "gemma3_lora": ("LoRA on frozen weights, tied embeddings", partial(build_lora, build_gemma3)),
        "mistral": ("a sliding window", partial(build_causal, "Mistral", sliding_window=64, **_GROUPED_HEADS)),
        "phi3": ("query, key and value in one projection", partial(build_causal, "Phi3", **_GROUPED_HEADS)),
        "qwen": ("biased queries, tied embeddings", partial(build_causal, "Qwen", **_GROUPED_HEADS)),
        "mixtral": (
            "four experts, of which two take each token",
            partial(build_causal, "Mixtral", num_experts=4, sliding_window=64, **_GROUPED_HEADS),
        ),
    }
    texts: dict[str, tuple[str, Callable[..., keras.Model], Callable[..., Arrays]]] = {
        "gpt2": ("text, the next token", build_gpt2, _texts),
        "gemma2": ("text, the next token, soft caps", build_gemma2, _texts),
        "roberta": ("text, classes", build_roberta, _labelled_texts),
        "bart": ("text, from one to another", build_bart, _text_pairs),
    }
    others: dict[str, tuple[str, Callable[..., keras.Model], Callable[..., Arrays]]] = {
        "bert": ("tokens, those masked", partial(build_masked, "Bert"), _masked_segments),
        "deberta": ("the same, disentangled attention", partial(build_masked, "DebertaV3"), _masked_tokens),
        "t5": ("tokens, from some to others, relative positions", build_t5, _token_pairs),
        "whisper": ("sounds to tokens", build_whisper, _sounds),
        "vit": ("images, classes", build_vit, _images),
        "segformer": ("images, a class for each pixel", build_segformer, _images_and_masks),
        "diffusion": ("latents, the noise in them", build_diffusion, _noisy_latents),
    }
    with_tokens = {name: (f"tokens, the next one: {what}", build, tokens) for name, (what, build) in causal.items()}
    for name, (what, build, arrays) in (texts | with_tokens | others).items():
        yield WildModel(f"hub_{name}", what, build, arrays, 8, needs="keras_hub")


MODELS = tuple(_models())
