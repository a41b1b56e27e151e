"""Losses in containers, and what an objective returns besides them."""

import pytest
import torch
from agreement import assert_agrees
from oracle import assert_gradients_close, assert_gramian_close, gradient_of, jacobian, trainable
from torch import nn

import fxgram

K = 4
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(4).eval()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        hidden = self.norm(self.trunk(x).tanh())
        return self.one(hidden)[:, 0].sin(), self.two(hidden).square()


@pytest.fixture
def model():
    """Give the model in float64."""
    torch.manual_seed(0)
    return Heads().double()


def in_tuple(m, x):
    return m(x)


def in_dict(m, x):
    one, two = m(x)
    return {"two": two, "nested": [one, {"sum": two.sum(1)}]}


def beside_each_other(m, x):
    one, two = m(x)
    return torch.cat([one[:, None], two], 1)


def beside_each_other_from_dict(m, x):
    one, two = m(x)
    return torch.cat([two, one[:, None], two.sum(1, keepdim=True)], 1)


def behind_each_other(m, x):
    one, two = m(x)
    return torch.cat([one.mean()[None], two.mean(0)])


FORMS = [
    (0, in_tuple, beside_each_other),
    (0, in_dict, beside_each_other_from_dict),
    (0, lambda m, x: [m(x)[0]], lambda m, x: m(x)[0][:, None]),
    (None, in_tuple, lambda m, x: torch.cat([part.flatten() for part in m(x)])),
    (None, lambda m, x: (m(x)[0].mean(), m(x)[1].mean(0)), behind_each_other),
    (None, lambda m, x: {"one": m(x)[0].mean()}, lambda m, x: m(x)[0].mean()[None]),
]


@pytest.mark.parametrize(("batch_dim", "objective", "flat"), FORMS)
def test_layout_of_losses(model, batch_dim, objective, flat):
    step = fxgram.compile(model, objective, batch_dim=batch_dim, cross_terms=True)
    for k in (K, 1, 3):
        losses, gramian = step(X[:k])
        expected = flat(model, X[:k])
        torch.testing.assert_close(losses, expected, rtol=1e-9, atol=1e-12)
        rows = jacobian(expected, trainable(model).values())
        assert_gramian_close(gramian, rows @ rows.T, 1e-9)
        weights = torch.linspace(-1, 2, losses.numel(), dtype=losses.dtype).view_as(losses)
        model.zero_grad(set_to_none=True)
        losses.backward(weights)
        assert_gradients_close(
            {name: p.grad for name, p in trainable(model).items()},
            gradient_of(expected, trainable(model), weights),
            1e-9,
        )


def test_no_samples(model):
    losses, gramian = fxgram.compile(model, in_tuple)(X[:0])
    assert losses.shape == (0, 3)
    assert gramian.shape == (0, 0)


def with_aux(m, x):
    one, two = m(x)
    aux = {
        "logits": two, "input": x, "calls": m.calls, "weight": m.one.weight.norm(),
        "plain": ("mse", 3, None), "mean": one.mean(), "best": two.argmax(1),
    }  # fmt: skip
    return one, aux


@pytest.mark.parametrize("batch_dim", [0, None])
def test_aux(model, batch_dim):
    step = fxgram.compile(model, with_aux, batch_dim=batch_dim, aux=True)
    for call, k in enumerate((K, 3, 1)):
        losses, gramian, aux = step(X[:k])
        assert model.calls == call + 1
        expected, wanted = with_aux(model, X[:k])
        model.calls -= 1
        torch.testing.assert_close(losses, expected, rtol=1e-9, atol=1e-12)
        assert gramian.shape == (k, k)
        assert aux.keys() == wanted.keys()
        assert aux["plain"] == wanted["plain"]
        assert aux["calls"] == call + 1
        for name in ("logits", "input", "weight", "mean", "best"):
            torch.testing.assert_close(aux[name], wanted[name].detach(), rtol=1e-9, atol=1e-12)
            assert not aux[name].requires_grad


def test_aux_is_no_use_of_a_parameter(model):
    plain = fxgram.compile(model, lambda m, x: m(x)[0])
    step = fxgram.compile(model, with_aux, aux=True)
    torch.testing.assert_close(step(X)[1], plain(X)[1], rtol=1e-12, atol=1e-12)
    assert len(step.uses) == len(plain.uses)


def test_aux_without_gradient_and_without_samples(model):
    step = fxgram.compile(model, with_aux, aux=True)
    with torch.no_grad():
        assert len(step(X)) == 3
    assert step(X[:0])[2]["logits"].shape == (0, 2)


def test_number_of_samples_in_aux(model):
    step = fxgram.compile(model, lambda m, x: (m(x)[0], len(x)), aux=True)
    assert [step(X)[2], step(X[:3])[2]] == [K, 3]


class Rolled(nn.Module):
    """Positions in an order that no sample axis follows; the samples stay apart."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, dtype=torch.float64))

    def forward(self, x):
        flat = torch.cat([x.t().flatten(), x.flatten()])
        order = torch.arange(len(flat)).roll(1).roll(-1)
        rows = flat[order].view(2, -1)[1].view(len(x), 3)
        return (torch.cat([rows.flatten(), self.w])[: rows.numel()].view(len(x), 3) * self.w).sum(1)


def mixing(m, x):
    return m(x) * m(x).mean()


def test_unfollowed_samples_take_a_backward_for_each_loss(caplog):
    model = Rolled()
    step = fxgram.compile(model, lambda m, x: m(x).sin(), cross_terms=True)
    with caplog.at_level("INFO", "fxgram"):
        for k in (K, 3):
            assert_agrees(step, model, lambda m, x: m(x).sin(), X[:k])
    assert {use.method for use in step.uses} == {"losses"}
    assert f"for {K} samples alone" in caplog.text
    with pytest.raises(fxgram.CoupledSamples):
        fxgram.compile(model, mixing)(X)
