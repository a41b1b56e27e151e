"""Image classifiers with the layers of the published networks, at a fraction of their widths."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from .case import Case, cross_entropy

CLASSES = 5
Norm = Callable[[int], nn.Module]


def _narrow(channels: int, width: float) -> int:
    """Scale a number of channels, to a multiple of four."""
    return max(4, 4 * round(channels * width / 4))


def alexnet(width: float) -> nn.Module:
    """Krizhevsky et al. 2012, in the one-tower form of 2014."""
    a, b, c, d, hidden = (_narrow(n, width) for n in (64, 192, 384, 256, 4096))
    return nn.Sequential(
        nn.Conv2d(3, a, 11, 4, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.Conv2d(a, b, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.Conv2d(b, c, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(c, d, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(d, d, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(6), nn.Flatten(),
        nn.Dropout(), nn.Linear(36 * d, hidden), nn.ReLU(inplace=True),
        nn.Dropout(), nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, CLASSES),
    )  # fmt: skip


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm(outputs),
            nn.ReLU(inplace=True), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), norm(outputs),
        )  # fmt: skip
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        out += self.shortcut(x)
        return out.relu_()


def resnet18(width: float, norm: Norm) -> nn.Module:
    """He et al. 2015, with another norm in place of batch norm."""
    stages = [_narrow(n, width) for n in (64, 64, 128, 256, 512)]
    blocks = []
    for stage, (inputs, outputs) in enumerate(pairwise(stages)):
        blocks.append(BasicBlock(inputs, outputs, 1 if stage == 0 else 2, norm))
        blocks.append(BasicBlock(outputs, outputs, 1, norm))
    stem = nn.Conv2d(3, stages[0], 7, 2, 3, bias=False)
    return nn.Sequential(
        stem, norm(stages[0]), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(stages[-1], CLASSES),
    )  # fmt: skip


class Gate(nn.Module):
    """Squeeze and excitation with a hard sigmoid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = _narrow(channels, 1 / 4)
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, squeezed, 1), nn.ReLU(),
            nn.Conv2d(squeezed, channels, 1), nn.Hardsigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x)


class InvertedResidual(nn.Module):
    """Expand, depthwise, project (Sandler et al. 2018; gate as in Howard et al. 2019)."""

    def __init__(
        self, inputs: int, hidden: int, outputs: int, kernel: int, stride: int,
        norm: Norm, activation: Callable[[], nn.Module], gated: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        layers: list[nn.Module] = []
        if hidden != inputs:
            layers += [nn.Conv2d(inputs, hidden, 1, bias=False), norm(hidden), activation()]
        padding = kernel // 2
        depthwise = nn.Conv2d(hidden, hidden, kernel, stride, padding, groups=hidden, bias=False)
        layers += [depthwise, norm(hidden), activation()]
        if gated:
            layers.append(Gate(hidden))
        layers += [nn.Conv2d(hidden, outputs, 1, bias=False), norm(outputs)]
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def mobilenet_v2(width: float, norm: Norm) -> nn.Module:
    # expansion, channels, repeats, stride
    table = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
             (6, 160, 3, 2), (6, 320, 1, 1)]  # fmt: skip
    inputs, last = _narrow(32, width), _narrow(1280, width)
    layers = [nn.Conv2d(3, inputs, 3, 2, 1, bias=False), norm(inputs), nn.ReLU6(inplace=True)]
    for expansion, channels, repeats, stride in table:
        outputs = _narrow(channels, width)
        for repeat in range(repeats):
            hidden, step = inputs * expansion, stride if repeat == 0 else 1
            block = InvertedResidual(inputs, hidden, outputs, 3, step, norm, nn.ReLU6)
            layers.append(block)
            inputs = outputs
    layers += [nn.Conv2d(inputs, last, 1, bias=False), norm(last), nn.ReLU6(inplace=True)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(last, CLASSES)]
    return nn.Sequential(*layers, *head)


def mobilenet_v3_small(width: float, norm: Norm) -> nn.Module:
    r, h = nn.ReLU, nn.Hardswish
    # kernel, expanded channels, channels, gated, activation, stride
    table = [(3, 16, 16, True, r, 2), (3, 72, 24, False, r, 2), (3, 88, 24, False, r, 1),
             (5, 96, 40, True, h, 2), (5, 240, 40, True, h, 1), (5, 240, 40, True, h, 1),
             (5, 120, 48, True, h, 1), (5, 144, 48, True, h, 1), (5, 288, 96, True, h, 2),
             (5, 576, 96, True, h, 1), (5, 576, 96, True, h, 1)]  # fmt: skip
    inputs, last, hidden = (_narrow(n, width) for n in (16, 576, 1024))
    layers = [nn.Conv2d(3, inputs, 3, 2, 1, bias=False), norm(inputs), h(inplace=True)]
    for kernel, expanded, channels, gated, activation, stride in table:
        expanded, outputs = _narrow(expanded, width), _narrow(channels, width)
        layers.append(
            InvertedResidual(inputs, expanded, outputs, kernel, stride, norm, activation, gated)
        )
        inputs = outputs
    layers += [nn.Conv2d(inputs, last, 1, bias=False), norm(last), h(inplace=True)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, hidden), h(inplace=True),
            nn.Dropout(0.2), nn.Linear(hidden, CLASSES)]  # fmt: skip
    return nn.Sequential(*layers, *head)


class Fire(nn.Module):
    """Squeeze, then expand twice and concatenate (Iandola et al. 2016)."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.one, self.three = (nn.Conv2d(squeezed, expanded, n, padding=n // 2) for n in (1, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x).relu_()
        return torch.cat([self.one(x).relu_(), self.three(x).relu_()], 1)


def squeezenet(width: float) -> nn.Module:
    """Version 1.1."""
    n = [_narrow(c, width) for c in (64, 128, 192, 256)]
    s = [_narrow(c, width) for c in (16, 32, 48, 64)]
    return nn.Sequential(
        nn.Conv2d(3, n[0], 3, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(n[0], s[0], n[0]), Fire(2 * n[0], s[0], n[0]), nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(2 * n[0], s[1], n[1]), Fire(2 * n[1], s[1], n[1]), nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(2 * n[1], s[2], n[2]), Fire(2 * n[2], s[2], n[2]),
        Fire(2 * n[2], s[3], n[3]), Fire(2 * n[3], s[3], n[3]),
        nn.Dropout(), nn.Conv2d(2 * n[3], CLASSES, 1), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def _instance_norm(channels: int) -> nn.Module:
    return nn.InstanceNorm2d(channels, affine=True)


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


def _frozen_batch_norm(channels: int) -> nn.Module:
    """Keep batch norm alone in eval mode: it would couple the samples otherwise."""
    return nn.BatchNorm2d(channels).eval()


def _images(pixels: int):
    return lambda draw, k: (draw.normal(k, 3, pixels, pixels), draw.ids(CLASSES, k))


def _case(name: str, build: Callable[[], nn.Module], pixels: int, random: bool = True) -> Case:
    return Case(
        name, build, _images(pixels), cross_entropy, sizes=(3, 8), random=random, large=True
    )


CASES = (
    _case("alexnet", lambda: alexnet(1 / 16), 64),
    _case("resnet18_instance_norm", lambda: resnet18(1 / 8, _instance_norm), 64, random=False),
    _case("mobilenet_v2", lambda: mobilenet_v2(1 / 8, _frozen_batch_norm), 32),
    _case("mobilenet_v3_small_group_norm", lambda: mobilenet_v3_small(1 / 8, _group_norm), 64),
    _case("squeezenet", lambda: squeezenet(1 / 8), 48),
)  # fmt: skip
