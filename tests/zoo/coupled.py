"""Losses that share samples, and losses of any shape: one row for each of `losses.flatten()`."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case

D, C = 3, 4


class BatchNormed(nn.Module):
    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(D, 4), nn.BatchNorm1d(4, momentum=momentum)
        self.last = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).tanh())


class BatchNormedImages(nn.Module):
    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3, momentum=momentum)
        self.last = nn.Linear(12, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.conv(x)).relu().flatten(1))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(D, 4), nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())


class TwoEncoders(nn.Module):
    """Two views of a sample, each through an encoder: the same one, or its untied copy."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.one = Encoder()
        self.other = self.one if tied else Encoder()

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.one(x), dim=1), F.normalize(self.other(y), dim=1)


class Tasks(nn.Module):
    """A trunk with three heads; one layer that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.unused = nn.Linear(D, 4), nn.Linear(2, 2)
        self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> list[Tensor]:
        hidden = self.drop(self.trunk(x).tanh())
        return [head(hidden) for head in self.heads]


class Routed(nn.Module):
    """Each sample goes to its two best experts of three, whose load is balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, 3, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(3, D, 4)), nn.Parameter(torch.randn(3, 4, C))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        share = self.gate(x).softmax(1)
        top, chosen = share.topk(2, dim=1)
        hidden = torch.einsum("kd,kjdh->kjh", x, self.up[chosen]).relu()
        out = torch.einsum("kjh,kjhc->kjc", hidden, self.down[chosen])
        load = F.one_hot(chosen, 3).to(x.dtype).sum(1).mean(0)
        return (out * top[..., None]).sum(1), (load * share.mean(0)).sum()


class Tagger(nn.Module):
    """An embedding that is the output projection as well."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(5, 4), nn.Linear(4, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.mix(self.embed(ids)).tanh() @ self.out().t()

    def out(self) -> Tensor:
        return self.embed.weight


class TaggerUntied(Tagger):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Parameter(torch.randn(5, 4))

    def out(self) -> Tensor:
        return self.project


def per_sample(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def batch_mean(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def contrastive(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    one, other = model(x, y)
    return F.cross_entropy(one @ other.t() / 0.2, torch.arange(len(x)), reduction="none")


def clip(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    one, other = model(x, y)
    logits, numbers = one @ other.t(), torch.arange(len(x))
    return torch.stack([F.cross_entropy(logits, numbers), F.cross_entropy(logits.t(), numbers)])


def in_batch_negatives(model: nn.Module, x: Tensor) -> Tensor:
    z = F.normalize(model(torch.cat([x, x.roll(1, 1)])), dim=1)
    one, other = z.chunk(2)
    return F.cross_entropy(one @ other.t(), torch.arange(len(x)), reduction="none")


def ranking(model: nn.Module, x: Tensor) -> Tensor:
    scores = model(x).sum(1)
    return F.softplus(scores[:, None] - scores).triu(1).sum(1)


def hardest_triplet(model: nn.Module, x: Tensor) -> Tensor:
    z = model(x)
    apart = (z[:, None] - z).square().sum(2)
    return F.relu(apart.max(1).values - apart.sum(1) / 2 + 1)


def pairs(model: nn.Module, x: Tensor) -> Tensor:
    z = model(x)
    return (z @ z.t()).sin()


def redundancy(model: nn.Module, x: Tensor) -> Tensor:
    z = model(x)
    return ((z - z.mean(0)).t() @ z / len(x) - torch.eye(C, dtype=x.dtype)).square()


def of_each_task(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([(out - y).square().mean() for out in model(x)])


def of_each_task_and_output(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([(out - y).abs().mean(0) for out in model(x)])


def routed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits, balance = model(x)
    return torch.stack([F.cross_entropy(logits, y), balance])


def routed_per_sample(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits, balance = model(x)
    return F.cross_entropy(logits, y, reduction="none") + balance


def next_tokens(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(0)


def _points(draw, k):
    return (draw.normal(k, D),)


def _labelled(draw, k):
    return draw.normal(k, D), draw.ids(C, k)


def _images(draw, k):
    return draw.normal(k, 1, 3, 3), draw.ids(C, k)


def _views(draw, k):
    return draw.normal(k, D), draw.normal(k, D)


def _tasks(draw, k):
    return draw.normal(k, D), draw.normal(k, 2)


def _case(name, build, draw, objective, *, sizes=(1, 3, 8), **options) -> Case:
    return Case(name, build, draw, objective, batch_dim=None, sizes=sizes, **options)


_UNTIED = {
    "untied": lambda: TwoEncoders(False),
    "copies": {"other": "one"},
}

CASES = (
    _case("batch_norm_1d", BatchNormed, _labelled, per_sample, sizes=(2, 3, 8)),
    _case(
        "batch_norm_of_plain_means",
        lambda: BatchNormed(None), _labelled, per_sample, sizes=(3, 2, 8),
    ),
    _case(
        "batch_norm_of_images_of_plain_means",
        lambda: BatchNormedImages(None), _images, per_sample,
    ),
    _case("batch_norm_mean_loss", BatchNormed, _labelled, batch_mean, sizes=(2, 3, 8)),
    _case("batch_norm_2d", BatchNormedImages, _images, per_sample),
    _case("batch_norm_in_eval", lambda: BatchNormed().eval(), _labelled, per_sample),
    _case("contrastive", lambda: TwoEncoders(True), _views, contrastive, **_UNTIED),
    _case("clip", lambda: TwoEncoders(True), _views, clip, **_UNTIED),
    _case("in_batch_negatives", Encoder, _points, in_batch_negatives),
    _case("more_losses_than_a_chunk", Encoder, _points, in_batch_negatives, sizes=(33, 70)),
    _case("ranking", Encoder, _points, ranking),
    _case("hardest_triplet", Encoder, _points, hardest_triplet),
    _case("pairs", Encoder, _points, pairs),
    _case("redundancy", Encoder, _points, redundancy),
    _case("tasks", Tasks, _tasks, of_each_task, random=True),
    _case("tasks_and_outputs", Tasks, _tasks, of_each_task_and_output, random=True),
    _case("routed", Routed, _labelled, routed),
    _case("routed_per_sample", Routed, _labelled, routed_per_sample),
    _case("mean_loss", Encoder, _labelled, batch_mean),
    _case("per_sample", Encoder, _labelled, per_sample),
    _case(
        "tied_tagger", Tagger, lambda draw, k: (draw.ids(5, k, 4),), next_tokens,
        untied=TaggerUntied, copies={"project": "embed.weight"},
    ),
)  # fmt: skip
