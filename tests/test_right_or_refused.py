"""Unusual forwards, each either exactly as eager or refused with an `FxgramError`."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agrees
from torch import nn

import fxgram

K = 4
_generator = torch.Generator().manual_seed(1)
X = torch.randn(K, 3, generator=_generator, dtype=torch.float64)
IDS = torch.tensor([[0, 1, 1], [1, 1, 4], [2, 0, 1], [3, 3, 3]])


class Linear(nn.Module):
    """One layer; subclasses say what the forward does with it."""

    def __init__(self):
        super().__init__()
        self.layer, self.w = nn.Linear(3, 2), nn.Parameter(torch.randn(3, 2))


class Cond(Linear):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.layer(x), lambda x: -self.layer(x), (x,))


class Checkpoint(Linear):
    reentrant = False

    def forward(self, x):
        y = F.dropout(x @ self.w, 0.5)
        run = torch.utils.checkpoint.checkpoint
        return y + run(self.layer, x.sin(), use_reentrant=self.reentrant)


class CheckpointReentrant(Checkpoint):
    reentrant = True


class Vmap(Linear):
    def forward(self, x):
        return torch.vmap(self.layer)(x) + x @ self.w


class Jacobian(Linear):
    def forward(self, x):
        return torch.vmap(torch.func.jacrev(lambda v: self.layer(v).sin()))(x).flatten(1)


class DetachedAlias(Linear):
    """Doubles the values behind autograd's back."""

    def forward(self, x):
        y = self.layer(x) + x @ self.w
        y.detach().mul_(2.0)
        return y * 1.0


class ClampedParameter(Linear):
    def forward(self, x):
        with torch.no_grad():
            self.w.clamp_(-0.1, 0.1)
        return self.layer(x) + x @ self.w


class OutArgument(Linear):
    def forward(self, x):
        scale = torch.empty(2, dtype=x.dtype)
        with torch.no_grad():
            torch.sum(x.detach(), (0, 1), out=scale[:1].view(()))
            torch.add(scale[0], 1.0, out=scale[1])
        return (self.layer(x) + x @ self.w) * scale


class ChangesItsParameter(Linear):
    """Registers another parameter in the first forward."""

    def forward(self, x):
        if not hasattr(self, "late"):
            self.late = nn.Parameter(torch.ones(2, dtype=x.dtype))
        return (self.layer(x) + x @ self.w) * self.late


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 2, dtype=torch.complex128))

    def forward(self, x):
        y = torch.complex(x, x.cos()) @ self.w
        return torch.cat([y.real.sin(), y.imag, y.abs()], 1)


class Spectrum(Linear):
    def forward(self, x):
        y = torch.fft.rfft(self.layer(x) + x @ self.w)
        return y.real.sin() + y.imag.cos()


class RandomInEval(Linear):
    def forward(self, x):
        return F.dropout(self.layer(x), 0.5, training=True) + F.rrelu(x @ self.w, training=True)


class SplitOutput(Linear):
    """Views of a result, written in place one after the other."""

    def forward(self, x):
        y = self.layer(x) + x @ self.w
        first, second = y.unbind(1)
        y = y * 2
        y[:, 0].add_(first)
        y.select(1, 1).mul_(second.sin())
        return y


def embedding(**options):
    torch.manual_seed(0)
    return nn.Embedding(5, 3, **options)


def normed(norm):
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), norm(nn.Linear(4, 2)))


def lstm_packed():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 2, batch_first=True)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(
                x.unsqueeze(1).expand(-1, 2, -1), torch.full((len(x),), 2), batch_first=True
            )
            return self.lstm(packed)[1][0][0]

    return Packed()


MODELS = {
    "cond": (Cond, X),
    "checkpoint": (Checkpoint, X),
    "checkpoint_reentrant": (CheckpointReentrant, X),
    "vmap": (Vmap, X),
    "jacobian": (Jacobian, X),
    "detached_alias": (DetachedAlias, X),
    "clamped_parameter": (ClampedParameter, X),
    "out_argument": (OutArgument, X),
    "late_parameter": (ChangesItsParameter, X),
    "complex": (Complex, X),
    "spectrum": (Spectrum, X),
    "random_in_eval": (lambda: RandomInEval().eval(), X),
    "split_output": (SplitOutput, X),
    "spectral_norm": (lambda: normed(nn.utils.parametrizations.spectral_norm), X),
    "spectral_norm_in_eval": (
        lambda: normed(nn.utils.parametrizations.spectral_norm).eval(),
        X,
    ),
    "orthogonal": (lambda: normed(nn.utils.parametrizations.orthogonal), X),
    "packed_sequence": (lstm_packed, X),
    "embedding_scaled_by_frequency": (lambda: embedding(scale_grad_by_freq=True), IDS),
    "embedding_max_norm": (lambda: embedding(max_norm=0.5), IDS),
    "embedding_sparse": (lambda: embedding(sparse=True), IDS),
    "embedding_bag": (lambda: nn.EmbeddingBag(5, 3, mode="sum"), IDS),
    "embedding_bag_max": (lambda: nn.EmbeddingBag(5, 3, mode="max"), IDS),
    "lazy": (lambda: nn.LazyLinear(2), X),
    "nested_compile": (lambda: torch.compile(nn.Linear(3, 2), backend="eager"), X),
    "synced_norms": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False)), X),
}


def squares(model, x):
    return model(x).square().flatten(1).sum(1)


@pytest.mark.parametrize("name", MODELS)
def test_right_or_refused(name):
    build, x = MODELS[name]
    torch.manual_seed(0)
    model = build().double() if name != "complex" else build()
    step = fxgram.compile(model, squares, cross_terms=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Lazy modules|.*torch.jit|None of the inputs")
        try:
            step(x)
        except fxgram.FxgramError:
            return
        assert_agrees(step, model, squares, x)
        assert_agrees(step, model, squares, x[1:])
