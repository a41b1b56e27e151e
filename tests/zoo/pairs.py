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


class Recurrent(nn.Module):
    """Its first state is made for as many sequences as come."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.LSTM(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.core(x)[0][:, -1]


class Tempered(nn.Module):
    """An encoder beside a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.scale = Encoder(), nn.Parameter(torch.tensor(0.4))


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


def keys_without_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The key of the sample itself against those of all: other samples' keys are data."""
    query = F.normalize(model(x), dim=1)
    with torch.no_grad():
        keys = F.normalize(model(y), dim=1)
    logits = torch.cat([(query * keys).sum(1, keepdim=True), query @ keys.t()], 1) / 0.3
    itself = torch.eye(len(x), dtype=torch.bool)
    logits = logits.masked_fill(F.pad(itself, (1, 0)), float("-inf"))
    return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long), reduction="none")


def temperature_of_keys(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    keys = model.encoder(y).detach()
    logits = torch.einsum("kd,jd->kj", model.encoder(x), keys) * model.scale.exp()
    return -logits.log_softmax(1).diagonal()


def nearest_target(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Distances to what all samples hold, in both spellings."""
    z, targets = model(x), y[:, :2]
    between = (z[:, None] - targets).square().sum(2)
    return between.amin(1) + torch.cdist(targets, z).t().softmax(1).square().sum(1)


def discriminator(model: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    of_real, of_fake = model(real, fake)
    return F.softplus(-of_real) + F.softplus(of_fake)


def _vectors(count: int):
    return lambda draw, k: tuple(draw.normal(k, D) for _ in range(count))


def _two_images(draw, k):
    return draw.normal(k, 1, 3, 3), draw.normal(k, 1, 3, 3)


def _two_sequences(draw, k):
    return draw.normal(k, 3, 4), draw.normal(k, 3, 4)


def _among_all(name: str, build, objective) -> Case:
    """Make a case whose losses read data of all samples, and reach their own sample alone."""
    return Case(name, build, _vectors(2), objective, alone=False, sizes=(1, 2, 3, 8))


CASES = (
    Case("pair_in_one_batch_by_chunk", Encoder, _vectors(2), by_chunk),
    Case("pair_in_one_batch_by_split", Encoder, _vectors(2), by_split, sizes=(1, 2, 3, 8)),
    Case("pair_in_one_batch_by_slices", Encoder, _vectors(2), by_slices, sizes=(1, 2, 3, 8)),
    Case("pair_in_one_batch_by_unbind", Encoder, _vectors(2), by_unbind),
    Case("pair_in_one_batch_by_turns", Encoder, _vectors(2), by_turns),
    Case("pair_of_images_in_one_batch", Images, _two_images, by_chunk),
    Case("pair_of_sequences_in_one_batch", Attention, _two_sequences, by_chunk),
    Case(
        "pair_through_an_lstm_in_one_batch",
        Recurrent,
        _two_sequences,
        by_turns,
        sizes=(1, 2, 3, 8),
    ),
    Case("triplets_in_one_batch", Encoder, _vectors(3), triplets),
    Case("parts_of_parts_of_one_batch", Encoder, _vectors(3), parts_of_parts),
    _among_all("keys_without_gradient", Encoder, keys_without_gradient),
    _among_all("learned_temperature_of_keys", Tempered, temperature_of_keys),
    _among_all("nearest_target_of_all", Encoder, nearest_target),
    Case(
        "discriminator_called_twice",
        lambda: Critic(1),
        _vectors(2),
        discriminator,
        untied=lambda: Critic(2),
        copies={"critics.1": "critics.0"},
    ),
)
