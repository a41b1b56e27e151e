"""Buffers that are read or updated, side effects, and random numbers in the forward."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case

D = 3


class ReadsBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, 2)
        self.register_buffer("scale", torch.tensor([0.5, -2.0]))
        self.register_buffer("keep", torch.tensor([True, False]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(self.keep, self.linear(x) * self.scale, self.linear.weight.new_ones(()))


class BufferTimesParameter(nn.Module):
    """An unchanged buffer is no data: their product is parameter-only, and used once."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, D))
        self.register_buffer("mask", torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w * self.mask).exp()


class Counter(nn.Module):
    """Counts its calls; the count changes the result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) / self.calls


class CounterAssigned(Counter):
    """The same, with a new tensor in place of an in-place update."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.linear(x) / self.calls


class RunningMean(nn.Module):
    """Writes a mean of the data into a buffer, and reads the mean of the calls before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)
        self.register_buffer("mean", torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x - self.mean)
        with torch.no_grad():
            # x.sum(0) of an empty batch is zeros, where a mean would be nan
            self.mean.mul_(0.9).add_(0.1 * x.sum(0))
        return out.sin()


class SideEffectInChild(nn.Module):
    """A child writes a buffer from its data and gives the data on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.child, self.last = nn.Linear(D, D), RunningMean(), nn.Linear(D, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.child(self.first(x).relu()))


class WeightDropout(nn.Module):
    """DropConnect: the same mask of weights for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, D))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.dropout(self.w, 0.5)).sigmoid()


class Noisy(nn.Module):
    """Noise on the input, on a hidden layer, and on a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(D, 4), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.randn_like(x)
        hidden = self.first(x).tanh() + torch.rand(x.shape[0], 4, dtype=x.dtype) * self.scale
        weight = self.last.weight + 0.1 * torch.randn_like(self.last.weight)
        return F.linear(hidden, weight, self.last.bias)


class UnusedNoise(nn.Module):
    """Draws numbers that nothing reads; the dropout after it must not notice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(D, 4), nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Tensor:
        torch.randn_like(x)
        return self.dropout(self.linear(x))


class NoiseInNoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = F.dropout(self.linear(x), 0.5)
        return F.dropout(self.linear(x), 0.5) - target


class Reparametrised(nn.Module):
    """Sample from a normal whose mean and deviation are outputs of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(D, 4), nn.Linear(2, D)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_deviation = self.encoder(x).chunk(2, dim=-1)
        return self.decoder(mean + log_deviation.exp() * torch.randn_like(mean)) - x


def _dropouts() -> nn.Module:
    return nn.Sequential(
        nn.Dropout(0.2), nn.Linear(D, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8),
        nn.Sequential(nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 2)), nn.Dropout(0.1),
    )  # fmt: skip


def _channel_dropouts() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 2), nn.Dropout2d(0.5), nn.Conv2d(8, 2, 2), nn.AlphaDropout()
    )


def _vectors(draw, k):
    return (draw.normal(k, D),)


CASES = (
    Case("reads_buffers", ReadsBuffer, _vectors),
    Case("buffer_times_parameter", BufferTimesParameter, _vectors),
    Case("counter_buffer", Counter, _vectors),
    Case("counter_buffer_assigned", CounterAssigned, _vectors),
    Case("buffer_written_from_data", RunningMean, _vectors),
    Case("side_effect_in_child", SideEffectInChild, _vectors),
    Case("dropouts", _dropouts, _vectors, random=True),
    Case(
        "channel_dropouts",
        _channel_dropouts,
        lambda draw, k: (draw.normal(k, 1, 4, 4),),
        random=True,
    ),
    Case("dropout_in_eval_mode", lambda: _dropouts().eval(), _vectors),
    Case("weight_dropout", WeightDropout, _vectors, random=True),
    Case("noise", Noisy, _vectors, random=True),
    Case("unused_noise", UnusedNoise, _vectors, random=True),
    Case("noise_without_gradients", NoiseInNoGrad, _vectors, random=True),
    Case("reparametrised_sample", Reparametrised, _vectors, random=True),
)
