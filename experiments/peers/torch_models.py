"""Models in PyTorch, each with the loss of one batch as a function of its parameters."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

_CLASSES, _WORDS = 10, 2000


class Step(NamedTuple):
    """The loss of a batch is `loss(*arguments)`; they are the batch and the parameters, none of which takes memory."""

    loss: Callable[..., torch.Tensor]
    arguments: list[torch.Tensor]
    mode: FakeTensorMode


def make_step(name: str) -> Step:
    """Makes a model and one batch for it."""
    mode = FakeTensorMode()
    with mode:
        model, x, y = MODELS[name]()
    names = [name for name, _ in model.named_parameters()]

    def loss(x: torch.Tensor, y: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x,))
        return functional.cross_entropy(logits, y)

    return Step(loss, [x, y, *(parameter.detach().requires_grad_() for parameter in model.parameters())], mode)


def _normal(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, track_running_stats=False)


class _Residual(nn.Module):
    """A bottleneck block of a ResNet, or an inverted one of a MobileNet where `groups` says depthwise."""

    def __init__(self, before: int, inner: int, after: int, stride: int, *, depthwise: bool = False):
        super().__init__()
        activation = nn.ReLU6 if depthwise else nn.ReLU
        self.body = nn.Sequential(
            nn.Conv2d(before, inner, 1, bias=False), _normal(inner), activation(),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner if depthwise else 1, bias=False),
            _normal(inner), activation(),
            nn.Conv2d(inner, after, 1, bias=False), _normal(after),
        )  # fmt: skip
        self.is_plain = stride == 1 and before == after
        self.shortcut = None if self.is_plain or depthwise else nn.Conv2d(before, after, 1, stride, bias=False)
        self.last = nn.Identity() if depthwise else nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        if self.shortcut is not None:
            y = y + self.shortcut(x)
        elif self.is_plain:
            y = y + x
        return self.last(y)


def _classifier(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, _CLASSES)]


def _images(size: int, batch_size: int) -> torch.Tensor:
    return torch.randn(batch_size, 3, size, size)


def _resnet50() -> Any:
    parts: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), _normal(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 << stage
        for block in range(blocks):
            parts.append(_Residual(channels, inner, 4 * inner, 2 if stage and not block else 1))
            channels = 4 * inner
    model = nn.Sequential(*parts, *_classifier(channels))
    return model, _images(160, 32), torch.randint(_CLASSES, (32,))


def _mobilenet() -> Any:
    parts: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), _normal(32), nn.ReLU6()]
    channels = 32
    for after, blocks, stride in ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)):
        for block in range(blocks):
            parts.append(_Residual(channels, 6 * channels, after, 1 if block else stride, depthwise=True))
            channels = after
    model = nn.Sequential(*parts, *_classifier(channels))
    return model, _images(160, 32), torch.randint(_CLASSES, (32,))


class _Unet(nn.Module):
    def __init__(self, channels: tuple[int, ...] = (32, 64, 128, 256)):
        super().__init__()

        def pair(before: int, after: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(before, after, 3, 1, 1, bias=False), _normal(after), nn.ReLU(),
                nn.Conv2d(after, after, 3, 1, 1, bias=False), _normal(after), nn.ReLU(),
            )  # fmt: skip

        sides = list(zip((3, *channels[:-2]), channels[:-1], strict=True))
        self.down = nn.ModuleList(pair(before, after) for before, after in sides)
        self.bottom = pair(channels[-2], channels[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(before, after, 2, 2) for after, before in pairwise(channels))
        self.after = nn.ModuleList(pair(2 * after, after) for after in channels[:-1])
        self.last = nn.Conv2d(channels[0], _CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for pair in self.down:
            x = pair(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, pair, skip in reversed(list(zip(self.up, self.after, skips, strict=True))):
            x = pair(torch.cat([up(x), skip], 1))
        return self.last(x)


def _unet() -> Any:
    return _Unet(), _images(128, 16), torch.randint(_CLASSES, (16, 128, 128))


class _Block(nn.Module):
    """A transformer block with its normalization first."""

    def __init__(self, width: int, heads: int, *, is_causal: bool):
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.first(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        scores = query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5
        if self.is_causal:
            scores = scores + torch.full((length, length), float("-inf")).triu(1)
        x = x + self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(rows, length, width))
        return x + self.feed(self.second(x))


class _Transformer(nn.Module):
    def __init__(self, width: int, heads: int, blocks: int, length: int, *, is_causal: bool):
        super().__init__()
        self.is_causal = is_causal
        self.embed, self.place = nn.Embedding(_WORDS, width), nn.Parameter(torch.randn(length, width) / 50)
        self.blocks = nn.Sequential(*(_Block(width, heads, is_causal=is_causal) for _ in range(blocks)))
        self.normal, self.last = nn.LayerNorm(width), nn.Linear(width, _WORDS if is_causal else _CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.normal(self.blocks(self.embed(tokens) + self.place))
        return self.last(x).flatten(0, 1) if self.is_causal else self.last(x.mean(1))


def _encoder() -> Any:
    model = _Transformer(256, 4, 12, 128, is_causal=False)
    return model, torch.randint(_WORDS, (32, 128)), torch.randint(_CLASSES, (32,))


def _decoder() -> Any:
    model = _Transformer(256, 4, 8, 512, is_causal=True)
    return model, torch.randint(_WORDS, (8, 512)), torch.randint(_WORDS, (8 * 512,))


class _LlamaBlock(nn.Module):
    """A decoder's block with RMS normalization, rotated queries and keys, and a gated feed-forward part."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        size = width // self.heads
        query, key, value = self.qkv(self.first(x)).view(rows, length, 3, self.heads, size).permute(2, 0, 3, 1, 4)
        angles = torch.outer(torch.arange(length), 10_000.0 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        query, key = (self._rotate(each, angles) for each in (query, key))
        scores = query @ key.transpose(-1, -2) * size**-0.5
        scores = scores + torch.full((length, length), float("-inf")).triu(1)
        x = x + self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(rows, length, width))
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    @staticmethod
    def _rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def _llama() -> Any:
    width = 256
    blocks = [_LlamaBlock(width, 4) for _ in range(8)]
    model = nn.Sequential(nn.Embedding(_WORDS, width), *blocks, nn.RMSNorm(width), nn.Linear(width, _WORDS))
    return nn.Sequential(model, nn.Flatten(0, 1)), torch.randint(_WORDS, (8, 256)), torch.randint(_WORDS, (8 * 256,))


MODELS: dict[str, Callable[[], Any]] = {
    "resnet50": _resnet50,
    "mobilenetv2": _mobilenet,
    "unet": _unet,
    "encoder": _encoder,
    "decoder": _decoder,
    "llama": _llama,
}
