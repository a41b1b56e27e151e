"""Objectives: what stands between the outputs of a model and its losses."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case, mean_squares
from .free import Free

T, D, C = 4, 3, 5


class ReturnsLosses(nn.Module):
    """Needs no objective: the model returns one loss per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(D, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh()).squeeze(-1)


class PenaltyInside(nn.Module):
    """A penalty on a parameter that nothing else uses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.w = nn.Linear(D, 1), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)[:, 0].sin() + self.w.square().sum()


class Penalised(nn.Module):
    """A weight that the forward uses and the objective penalises."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(D, 2))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w).sin()

    def penalty(self) -> Tensor:
        return self.w.square().sum()


class PenalisedUntied(Penalised):
    def __init__(self) -> None:
        super().__init__()
        self.penalised = nn.Parameter(torch.randn(D, 2))

    def penalty(self) -> Tensor:
        return self.penalised.square().sum()


def _tagger() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, C))


def _sequence_loss(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(model(x).transpose(1, 2), classes, reduction="none").mean(1)


def _flat_sequence_loss(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    losses = F.cross_entropy(model(x).view(-1, C), classes.view(-1), reduction="none")
    return losses.view(classes.shape).mean(1)


def _loss_per_token(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(model(x).transpose(1, 2), classes, reduction="none")


def _ignoring(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    losses = F.cross_entropy(model(x).transpose(1, 2), classes, ignore_index=-100, reduction="none")
    return losses.sum(1) / (classes != -100).sum(1).clamp(min=1)


def _smoothed_and_weighted(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    weight = torch.linspace(0.5, 2, C, dtype=x.dtype)
    return F.cross_entropy(
        model(x).mean(1), classes[:, 0], weight, label_smoothing=0.1, reduction="none"
    )


def _soft_targets(model: nn.Module, x: Tensor) -> Tensor:
    logits = model(x)
    target = logits.detach().roll(1, dims=-1).softmax(-1)
    return F.kl_div(logits.log_softmax(-1), target, reduction="none").sum((1, 2))


def _binary(model: nn.Module, x: Tensor) -> Tensor:
    targets = (x.sum(-1, keepdim=True) > 0).to(x.dtype).expand(-1, -1, C)
    return F.binary_cross_entropy_with_logits(model(x), targets, reduction="none").mean((1, 2))


def _huber(model: nn.Module, x: Tensor) -> Tensor:
    return F.smooth_l1_loss(
        model(x), torch.ones(C, dtype=x.dtype).expand(len(x), T, C), reduction="none"
    ).amax((1, 2))


def _hinge(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    return F.multi_margin_loss(model(x)[:, 0], classes[:, 0], reduction="none")


def _listed_labels(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Labels up to the first -1 count."""
    labels = F.pad(classes - 1, (0, 1), value=-1)
    return F.multilabel_margin_loss(model(x).mean(1), labels, reduction="none")


def _heads(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Three losses a sample, of different kinds, one for each part of the outputs."""
    logits, value, rest = model(x).mean(1).split([3, 1, 1], 1)
    of_class = F.cross_entropy(logits, classes[:, 0] % 3, reduction="none")
    of_value = F.mse_loss(value[:, 0], x.sum((1, 2)), reduction="none")
    of_sign = F.binary_cross_entropy_with_logits(
        rest[:, 0], (x[:, 0, 0] > 0).to(x.dtype), reduction="none"
    )
    return torch.stack([of_class, of_value, of_sign], 1)


def _with_penalty(model: nn.Module, x: Tensor) -> Tensor:
    return mean_squares(model, x) + 0.1 * model.penalty()


def _parameters_alone(model: nn.Module, x: Tensor) -> Tensor:
    return model.w.square().sum().expand(len(x))


def _penalty_only_of(model: nn.Module, x: Tensor) -> Tensor:
    return x.sum(1) * 0 + model.w.pow(2).sum() + mean_squares(model, x).detach()


def _scalar_steps(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    return out.square().sum((1, 2)).sqrt() + out.abs().amax((1, 2)) - out.logsumexp((1, 2))


def _labelled(draw, k):
    return draw.normal(k, T, D), draw.ids(C, k, T)


def _partly_labelled(draw, k):
    classes = draw.ids(C, k, T)
    return draw.normal(k, T, D), classes.masked_fill(draw.mask(k, T), -100)


def _sequences(draw, k):
    return (draw.normal(k, T, D),)


def _vectors(draw, k):
    return (draw.normal(k, D),)


def _one_use(m, x):
    return (x @ m.w).sin()


CASES = (
    Case("model_returns_losses", ReturnsLosses, _vectors, None),
    Case("penalty_inside_the_model", PenaltyInside, _vectors, None),
    Case("sequence_cross_entropy", _tagger, _labelled, _sequence_loss),
    Case("flattened_sequence_cross_entropy", _tagger, _labelled, _flat_sequence_loss),
    Case("loss_per_token", _tagger, _labelled, _loss_per_token, sizes=(0, 1, 2, 3, 8)),
    Case("ignored_labels", _tagger, _partly_labelled, _ignoring),
    Case("smoothed_and_weighted_classes", _tagger, _labelled, _smoothed_and_weighted),
    Case("soft_targets_of_itself", _tagger, _sequences, _soft_targets),
    Case("binary_cross_entropy", _tagger, _sequences, _binary),
    Case("largest_huber_loss", _tagger, _sequences, _huber),
    Case("hinge", _tagger, _labelled, _hinge),
    Case("hinge_of_listed_labels", _tagger, _labelled, _listed_labels),
    Case("heads_with_losses_of_their_own", _tagger, _labelled, _heads),
    Case("norm_maximum_and_logsumexp", _tagger, _sequences, _scalar_steps),
    Case(
        "penalty_on_a_used_weight",
        Penalised,
        _vectors,
        _with_penalty,
        untied=PenalisedUntied,
        copies={"penalised": "w"},
    ),
    Case("parameters_alone", lambda: Free(_one_use, w=(D, 2)), _vectors, _parameters_alone),
    Case("penalty_alone", lambda: Free(_one_use, w=(D, 2)), _vectors, _penalty_only_of),
)
