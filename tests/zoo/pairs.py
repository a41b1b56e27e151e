"""Several inputs through one network: apart, or behind each other in one batch of c * K."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case

D = 3


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(D, 4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).tanh())


class Images(nn.Module):
    """Normalises behind a convolution, where the samples are the leading dim."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.conv(x)).relu().flatten(1))


class Attention(nn.Module):
    """Folds heads into the batch, which is folded already."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x, x, x, need_weights=False)[0].mean(1)


class Critic(nn.Module):
    """A discriminator, called once for each of two inputs; its untied twin has two of them."""

    def __init__(self, copies: int) -> None:
        super().__init__()
        self.critics = nn.ModuleList(
            nn.Sequential(nn.Linear(D, 4), nn.LeakyReLU(0.2), nn.Linear(4, 1))
            for _ in range(copies)
        )

    def forward(self, real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
        return self.critics[0](real)[:, 0], self.critics[-1](fake)[:, 0]


def _apart(one: Tensor, other: Tensor) -> Tensor:
    return (one - other).square().sum(1) - F.cosine_similarity(one, other)


def by_chunk(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return _apart(*model(torch.cat([x, y])).chunk(2))


def by_split(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return _apart(*torch.split(model(torch.cat((x, y))), len(x)))


def by_slices(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    z, k = model(torch.vstack([x, y])), len(x)
    return _apart(z[:k], z[-k:])


def by_unbind(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return _apart(*model(torch.stack([x, y])).unbind(0))


def by_turns(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    z = model(torch.stack([x, y], 1).flatten(0, 1))
    return _apart(z[::2], z[1::2])


def triplets(model: nn.Module, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    z = model(torch.cat([anchor, positive, negative]))
    return F.triplet_margin_loss(*z.chunk(3), margin=2.0, reduction="none")


def parts_of_parts(model: nn.Module, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    z, k = model(torch.cat([anchor, positive, negative])), len(anchor)
    others = z.narrow(0, k, 2 * k).sin()
    one, other = torch.tensor_split(others, 2)
    return _apart(z[:k] * one, other)


def discriminator(model: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    of_real, of_fake = model(real, fake)
    return F.softplus(-of_real) + F.softplus(of_fake)


def _vectors(count: int):
    return lambda draw, k: tuple(draw.normal(k, D) for _ in range(count))


def _two_images(draw, k):
    return draw.normal(k, 1, 3, 3), draw.normal(k, 1, 3, 3)


def _two_sequences(draw, k):
    return draw.normal(k, 3, 4), draw.normal(k, 3, 4)


CASES = (
    Case("pair_in_one_batch_by_chunk", Encoder, _vectors(2), by_chunk),
    Case("pair_in_one_batch_by_split", Encoder, _vectors(2), by_split, sizes=(1, 2, 3, 8)),
    Case("pair_in_one_batch_by_slices", Encoder, _vectors(2), by_slices, sizes=(1, 2, 3, 8)),
    Case("pair_in_one_batch_by_unbind", Encoder, _vectors(2), by_unbind),
    Case("pair_in_one_batch_by_turns", Encoder, _vectors(2), by_turns),
    Case("pair_of_images_in_one_batch", Images, _two_images, by_chunk),
    Case("pair_of_sequences_in_one_batch", Attention, _two_sequences, by_chunk),
    Case("triplets_in_one_batch", Encoder, _vectors(3), triplets),
    Case("parts_of_parts_of_one_batch", Encoder, _vectors(3), parts_of_parts),
    Case(
        "discriminator_called_twice",
        lambda: Critic(1),
        _vectors(2),
        discriminator,
        untied=lambda: Critic(2),
        copies={"critics.1": "critics.0"},
    ),
)
