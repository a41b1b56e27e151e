"""Parameters that are frozen, partly frozen, or unused."""

import torch
from torch import Tensor, nn

from .case import Case, mean_squares

D = 3


def _perceptron(frozen: str = "", unused: bool = False) -> nn.Module:
    """Freeze the parameters whose names contain `frozen`."""
    model = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    for name, param in model.named_parameters():
        param.requires_grad_(not frozen or frozen not in name)
    if unused:
        model[0].register_parameter("unused", nn.Parameter(torch.randn(2)))
    return model


class LowRank(nn.Module):
    """Frozen weight plus two trainable factors, merged before use or not."""

    def __init__(self, merged: bool) -> None:
        super().__init__()
        self.merged, self.base = merged, nn.Linear(D, 4).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, D)), nn.Parameter(torch.randn(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        if self.merged:
            return nn.functional.linear(x, self.base.weight + self.b @ self.a, self.base.bias).sin()
        return (self.base(x) + x @ self.a.t() @ self.b.t()).sin()


class FrozenBetween(nn.Module):
    """A frozen layer called twice, between trainable ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.last = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 2)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.frozen(self.frozen(self.first(x)).relu()).tanh())


class TeacherStudent(nn.Module):
    """The target comes from a module that runs without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = nn.Linear(D, 2), nn.Linear(D, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.teacher(x).tanh()
        return self.student(x) - target


class MomentumEncoder(nn.Module):
    """The target encoder follows the trained one in every forward, which writes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(D, 2), nn.Linear(D, 2)
        self.key.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for mine, other in zip(self.key.parameters(), self.query.parameters(), strict=True):
                mine.mul_(0.9).add_(other, alpha=0.1)
            target = self.key(x).tanh()
        return self.query(x) - target


class SelfDistillation(nn.Module):
    """The target is the model itself, without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(D, 4), nn.Linear(4, 2)

    def predict(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.predict(x + 0.5)
        return self.predict(x) * target


class DetachedBranch(SelfDistillation):
    """One path through the head is detached, and so is one through the body."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x).tanh()
        detached = hidden.detach() @ self.head.weight.detach().t()
        return self.head(hidden) * detached


class DetachedParameter(nn.Module):
    """A weight divided by its own detached norm: the norm has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, D))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ (self.w / self.w.detach().norm()).t()).sin()


class FrozenUpTo(nn.Module):
    """The lower part of the model runs under `no_grad`."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper = nn.Linear(D, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.lower(x).relu()
        with torch.enable_grad():
            return self.upper(x)


class NeverUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle, self.spare = (
            nn.Linear(D, 2),
            nn.Linear(D, 5),
            nn.Parameter(torch.ones(())),
        )

    def forward(self, x: Tensor) -> Tensor:
        self.idle(x)  # its result goes nowhere
        return self.used(x)


class TimesZero(NeverUsed):
    """Reached by autograd, with a gradient of zeros: not the same as unreached."""

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x) + 0 * self.spare


def _vectors(draw, k):
    return (draw.normal(k, D),)


def _with_detached_term(model: nn.Module, x: Tensor) -> Tensor:
    return mean_squares(model, x) + model[0](x.detach()).sum(1).detach()


CASES = (
    Case("nothing_frozen", _perceptron, _vectors),
    Case("biases_frozen", lambda: _perceptron("bias"), _vectors),
    Case("weights_frozen", lambda: _perceptron("weight"), _vectors),
    Case("first_layer_frozen", lambda: _perceptron("0."), _vectors),
    Case("last_layer_frozen", lambda: _perceptron("4."), _vectors),
    Case("one_weight_frozen", lambda: _perceptron("2.weight"), _vectors),
    Case("frozen_called_twice", FrozenBetween, _vectors),
    Case("unused_parameter", lambda: _perceptron(unused=True), _vectors),
    Case("result_never_used", NeverUsed, _vectors),
    Case("gradient_of_zeros", TimesZero, _vectors),
    Case("low_rank_merged", lambda: LowRank(True), _vectors),
    Case("low_rank_apart", lambda: LowRank(False), _vectors),
    Case("teacher_without_gradients", TeacherStudent, _vectors),
    Case("momentum_encoder", MomentumEncoder, _vectors),
    Case("self_distillation", SelfDistillation, _vectors),
    Case("detached_branch", DetachedBranch, _vectors),
    Case("detached_norm_of_a_parameter", DetachedParameter, _vectors),
    Case("lower_half_without_gradients", FrozenUpTo, _vectors),
    Case("detached_loss_term", _perceptron, _vectors, _with_detached_term),
)
