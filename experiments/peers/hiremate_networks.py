"""The nine networks of the HiRemate paper in PyTorch, in the sizes of its authors' repository, without dropout.

Each is written from the public definition of its architecture: torchvision's ResNet101 and RegNetX-32GF, PyTorch's
`nn.Transformer`, GPT-2, the MLP-Mixer, a U-Net, and the neural operators FNO, U-FNO and UNO in three dimensions. The
loss is the sum of a network's outputs, as the authors have it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from experiments.peers.torch_models import Step

Sample = tuple[nn.Module, list[torch.Tensor]]


def make_step(name: str) -> Step:
    """Makes a network and one batch, both without memory."""
    mode = FakeTensorMode()
    with mode:
        model, inputs = NETWORKS[name]()
    names = [name for name, _ in model.named_parameters()]

    def loss(*arguments: torch.Tensor) -> torch.Tensor:
        parameters = dict(zip(names, arguments[len(inputs) :], strict=True))
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            return torch.func.functional_call(model, parameters, tuple(arguments[: len(inputs)])).sum()

    return Step(loss, [*inputs, *(parameter.detach().requires_grad_() for parameter in model.parameters())], mode)


def _convolution(before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(after, track_running_stats=False)]


class _Bottleneck(nn.Module):
    def __init__(self, before: int, inner: int, after: int, stride: int, groups: int = 1):
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(before, inner, 1), nn.ReLU(), *_convolution(inner, inner, 3, stride, groups), nn.ReLU(),
            *_convolution(inner, after, 1),
        )  # fmt: skip
        is_plain = before == after and stride == 1
        self.shortcut = nn.Identity() if is_plain else nn.Sequential(*_convolution(before, after, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def _classifier(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]


def _resnet101() -> Sample:
    parts: list[nn.Module] = [*_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 23, 3)):
        inner = 64 << stage
        for block in range(blocks):
            parts.append(_Bottleneck(channels, inner, 4 * inner, 2 if stage and not block else 1))
            channels = 4 * inner
    return nn.Sequential(*parts, *_classifier(channels)), [torch.randn(64, 3, 256, 256)]


def _regnet() -> Sample:
    parts: list[nn.Module] = [*_convolution(3, 32, 3, 2), nn.ReLU()]
    channels = 32
    for after, blocks in ((336, 2), (672, 7), (1344, 13), (2520, 1)):
        for block in range(blocks):
            parts.append(_Bottleneck(channels, after, after, 1 if block else 2, after // 168))
            channels = after
    return nn.Sequential(*parts, *_classifier(channels)), [torch.randn(23, 3, 256, 256)]


class _Unet(nn.Module):
    def __init__(self, channels: Sequence[int] = (32, 64, 128, 256, 512)):
        super().__init__()

        def pair(before: int, after: int) -> nn.Module:
            return nn.Sequential(*_convolution(before, after), nn.ReLU(), *_convolution(after, after), nn.ReLU())

        self.down = nn.ModuleList(pair(before, after) for before, after in pairwise((3, *channels)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(before, after, 2, 2) for after, before in pairwise(channels))
        self.after = nn.ModuleList(pair(2 * after, after) for after in channels[:-1])
        self.last = nn.Conv2d(channels[0], 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for pair in self.down[:-1]:
            skips.append(pair(x))
            x = functional.max_pool2d(skips[-1], 2)
        x = self.down[-1](x)
        for up, pair, skip in reversed(list(zip(self.up, self.after, skips, strict=True))):
            x = pair(torch.cat([up(x), skip], 1))
        return self.last(x).sigmoid()


class _MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.by_token = nn.Sequential(nn.Linear(tokens, 4 * tokens), nn.GELU(), nn.Linear(4 * tokens, tokens))
        self.by_channel = nn.Sequential(nn.Linear(width, width // 2), nn.GELU(), nn.Linear(width // 2, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.by_token(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.by_channel(self.second(x))


class _Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 512, 16, 16)
        self.blocks = nn.Sequential(*(_MixerBlock(256, 512) for _ in range(12)), nn.LayerNorm(512))
        self.last = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class _Gpt2Block(nn.Module):
    def __init__(self, width: int = 768):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        query, key, value = self.qkv(self.first(x)).view(rows, length, 3, 12, width // 12).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.feed(self.second(x))


class _Gpt2(nn.Module):
    def __init__(self, words: int = 50257, width: int = 768):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(_Gpt2Block() for _ in range(12)), nn.LayerNorm(width))
        self.last = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.last(self.blocks(self.embed(tokens) + self.place(places)))


def _gpt2() -> Sample:
    return _Gpt2(), [torch.randint(50257, (100, 20)), torch.arange(20)]


class _Transformer(nn.Module):
    """PyTorch's `nn.Transformer`, whose constructor cannot copy layers without memory."""

    def __init__(self, layers: int, width: int = 512, heads: int = 16):
        super().__init__()
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, dropout=0.0) for _ in range(layers))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(width, heads, dropout=0.0) for _ in range(layers))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for layer in self.encoder:
            source = layer(source)
        memory = self.first(source)
        for layer in self.decoder:
            target = layer(target, memory)
        return self.second(target)


def _transformer(layers: int) -> Sample:
    return _Transformer(layers), [torch.rand(200, 32, 512), torch.rand(200, 32, 512)]


class _Spectral(nn.Module):
    """A convolution by Fourier transforms, which multiplies the lowest frequencies of three dimensions."""

    def __init__(self, before: int, after: int, modes: Sequence[int]):
        super().__init__()
        self.modes = tuple(modes)
        weights = (torch.rand(before, after, *modes, dtype=torch.cfloat) for _ in range(4))
        self.weights = nn.ParameterList(weights)

    def forward(self, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        first, second, third = self.modes
        spectrum = torch.fft.rfftn(x, dim=(-3, -2, -1))
        rows = []
        for one in (slice(first), slice(-first, None)):
            columns = [spectrum[:, :, one, other, :third] for other in (slice(second), slice(-second, None))]
            weights = self.weights[2 * len(rows) : 2 * len(rows) + 2]
            products = [torch.einsum("bixyz,ioxyz->boxyz", *each) for each in zip(columns, weights, strict=True)]
            gap = sizes[1] - 2 * second
            rows.append(torch.cat([functional.pad(products[0], (0, 0, 0, gap)), products[1]], -2))
        kept = torch.cat([functional.pad(rows[0], (0, 0, 0, 0, 0, sizes[0] - 2 * first)), rows[1]], -3)
        return torch.fft.irfftn(functional.pad(kept, (0, sizes[2] // 2 + 1 - third)), s=tuple(sizes), dim=(-3, -2, -1))


class _OperatorBlock(nn.Module):
    """A spectral convolution and a pointwise one, added; U-FNO adds a small U-Net, and UNO changes the resolution."""

    def __init__(self, before: int, after: int, modes: Sequence[int], scale: float = 1, *, has_unet: bool = False):
        super().__init__()
        self.spectral, self.pointwise = _Spectral(before, after, modes), nn.Conv3d(before, after, 1)
        self.scale = scale
        self.unet = _SmallUnet(after) if has_unet else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = [int(size * self.scale) for size in x.shape[2:]]
        y = self.pointwise(x)
        if self.scale != 1:
            y = functional.interpolate(y, sizes, mode="nearest")
        y = y + self.spectral(x, sizes)
        return functional.relu(y + self.unet(x)) if self.unet is not None else functional.gelu(y)


class _SmallUnet(nn.Module):
    def __init__(self, width: int):
        super().__init__()

        def unit(before: int, stride: int) -> nn.Module:
            normal = nn.BatchNorm3d(width, track_running_stats=False)
            return nn.Sequential(nn.Conv3d(before, width, 3, stride, 1, bias=False), normal, nn.LeakyReLU(0.1))

        self.down = nn.ModuleList(nn.Sequential(unit(width, 2), unit(width, 1)) for _ in range(3))
        self.up = nn.ModuleList(nn.ConvTranspose3d(before, width, 4, 2, 1) for before in (2 * width, 2 * width, width))
        self.last = nn.Conv3d(2 * width, width, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [x]
        for part in self.down:
            levels.append(part(levels[-1]))
        y = levels.pop()
        for up, skip in zip(reversed(self.up), reversed(levels), strict=True):
            y = torch.cat([up(y), skip], 1)
        return self.last(y)


class _Operator(nn.Module):
    def __init__(self, inputs: int, width: int, blocks: Sequence[nn.Module], *, after: int | None = None):
        super().__init__()
        self.lift, self.blocks = nn.Linear(inputs, width), nn.ModuleList(blocks)
        self.project = nn.Sequential(nn.Linear(after or width, 128), nn.GELU(), nn.Linear(128, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lift(x).movedim(-1, 1)
        for block in self.blocks:
            y = block(y)
        return self.project(y.movedim(1, -1))


def _fno() -> Sample:
    blocks = [_OperatorBlock(64, 64, (16, 16, 16)) for _ in range(4)]
    return _Operator(10, 64, blocks), [torch.rand(5, 64, 64, 40, 10)]


def _ufno() -> Sample:
    blocks = [_OperatorBlock(36, 36, (10, 10, 10), has_unet=block >= 3) for block in range(6)]
    return _Operator(12, 36, blocks), [torch.rand(3, 96, 200, 24, 12)]


class _Uno(_Operator):
    """Blocks that halve the resolution and then double it; the latter read results of the former, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = [self.lift(x).movedim(-1, 1)]
        half = len(self.blocks) // 2
        for block in self.blocks[:half]:
            skips.append(block(skips[-1]))
        y = skips.pop()
        for block in self.blocks[half:]:
            y = torch.cat([block(y), skips.pop()], 1)
        return self.project(y.movedim(1, -1))


def _uno() -> Sample:
    blocks = [
        _OperatorBlock(8, 16, (16, 16, 4), 0.5), _OperatorBlock(16, 32, (8, 8, 2), 0.5),
        _OperatorBlock(32, 16, (8, 8, 2), 2), _OperatorBlock(32, 8, (16, 16, 4), 2),
    ]  # fmt: skip
    return _Uno(1, 8, blocks, after=16), [torch.rand(2, 64, 64, 12, 1)]


NETWORKS: dict[str, Callable[[], Sample]] = {
    "gpt2": _gpt2,
    "unet": lambda: (_Unet(), [torch.randn(50, 3, 256, 256)]),
    "mlp_mixer": lambda: (_Mixer(), [torch.randn(100, 3, 256, 256)]),
    "regnet_x_32gf": _regnet,
    "resnet101": _resnet101,
    "transformer": lambda: _transformer(6),
    "fno": _fno,
    "u_fno": _ufno,
    "uno": _uno,
    "transformer of 36 layers": lambda: _transformer(18),
}
