"""Objectives that differentiate inside, against eager autograd through the inner derivative."""

import logging
from copy import deepcopy

import pytest
import torch
from oracle import (
    assert_close_relative,
    assert_gradients_close,
    assert_gramian_close,
    evaluate,
    gradient_of,
    jacobian,
    trainable,
)
from torch import nn
from zoo.derivatives import CASES, Field, heat_equation, vmapped_laplacian

import fxgram

# PyTorch scripts its formulas for forward-mode derivatives when they are first needed.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")

X = torch.randn(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
SAMPLE_AXIS_FOLLOWED = {
    "heat_equation", "residual_and_data", "vmapped_gradient", "vmapped_model", "pulled_back",
    "functional", "constant_slope", "slope_at_a_latent", "buffer_in_a_derivative",
    "force_matching", "slopes_of_a_pair",
}  # fmt: skip


def field():
    torch.manual_seed(0)
    return Field().double()


def tensors_of(batch):
    return tuple(t.clone() for t in batch)  # objectives may call `requires_grad_()`


@pytest.mark.parametrize("cross_terms", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_the_oracle(case, cross_terms):
    """The exact mode gives `J Jᵀ`; the default mode the same losses, draws and gradients."""
    model = case.make()
    options = {"batch_dim": case.batch_dim, "cross_terms": cross_terms}
    step = fxgram.compile(model, case.objective, **options)
    for k in case.sizes:
        batch, eager = case.batch(k), deepcopy(model)
        torch.manual_seed(k)
        expected = evaluate(eager, case.objective, tensors_of(batch))
        drawn = torch.get_rng_state()
        rows = jacobian(expected, trainable(eager).values())
        torch.manual_seed(k)
        losses, gramian = step(*batch)
        assert torch.equal(torch.get_rng_state(), drawn)
        assert_close_relative(losses.detach(), expected.detach(), 1e-9, f"K={k} losses")
        if cross_terms:
            assert_gramian_close(gramian, rows @ rows.T, 1e-9, f"K={k}")
        assert torch.equal(gramian, gramian.T)
        weights = torch.linspace(-1, 2, expected.numel(), dtype=expected.dtype)
        weights = weights.view_as(expected)
        losses.backward(weights)
        assert_gradients_close(
            {name: p.grad for name, p in trainable(model).items()},
            gradient_of(expected, trainable(eager), weights),
            1e-9,
        )
        for (name, buffer), other in zip(model.named_buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(buffer, other, msg=lambda m, n=name: f"{n}: {m}")
        model.zero_grad(set_to_none=True)
        assert not any(t.requires_grad for t in batch)
    if case.batch_dim == 0:
        methods = {use.method for use in step.uses}
        assert ("losses" not in methods) == (case.name in SAMPLE_AXIS_FOLLOWED)


def test_a_program_for_one_size_says_so(caplog):
    step = fxgram.compile(field(), vmapped_laplacian, cross_terms=True)
    with caplog.at_level(logging.INFO, "fxgram"):
        step(X)
        step(X[:3])
    said = [r.getMessage() for r in caplog.records if "alone" in r.getMessage()]
    assert ["5 samples alone" in said[0], "3 samples alone" in said[1]] == [True, True]


def test_default_mode_says_that_uses_are_counted_as_traced(caplog):
    with caplog.at_level(logging.WARNING, "fxgram"):
        fxgram.compile(field(), heat_equation)(X)
    (warning,) = [r.getMessage() for r in caplog.records if r.name == "fxgram"]
    assert "first.weight (" in warning
    assert "as traced" in warning


def coupled(model, x):
    x = x.detach().requires_grad_()
    u = model(x)
    (slope,) = torch.autograd.grad((u - u.mean()).square().sum(), x, create_graph=True)
    return slope.square().sum(1)


def coupled_laplacian(model, x):
    return vmapped_laplacian(model, x) * model(x).sum()


@pytest.mark.parametrize("objective", [coupled, coupled_laplacian])
def test_coupled_samples_are_refused(objective):
    with pytest.raises(fxgram.CoupledSamples):
        fxgram.compile(field(), objective)(X)
    step = fxgram.compile(field(), objective, batch_dim=None, cross_terms=True)
    model = field()
    rows = jacobian(objective(model, X.clone()), trainable(model).values())
    assert_gramian_close(step(X)[1], rows @ rows.T, 1e-9)


def test_closures_are_constants_by_reference():
    scale = torch.ones(2, dtype=torch.float64)

    def objective(model, x):
        return heat_equation(model, x * scale)

    model = field()
    step = fxgram.compile(model, objective)
    for _ in range(2):
        torch.testing.assert_close(step(X)[0], objective(model, X.clone()), rtol=1e-9, atol=0)
        scale.mul_(1.5)


def test_closure_that_requires_grad_is_named():
    scale = torch.ones(2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(fxgram.CaptureError, match="`scale`"):
        fxgram.compile(field(), lambda m, x: heat_equation(m, x * scale))(X)


def test_nothing_but_the_results_changes():
    model = field()
    before, drawn = deepcopy(model.state_dict()), torch.get_rng_state()
    fxgram.compile(model, heat_equation)(X)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(p.grad is None for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 3, batch_first=True)

    def forward(self, x):
        return self.lstm(x[:, None].expand(-1, 4, -1))[0].sum((1, 2))


def test_without_second_derivative_is_right_or_refused():
    torch.manual_seed(0)
    model = Recurrent().double()

    def objective(model, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(model(x).sum(), x, create_graph=True)[0].square().sum(1)

    step = fxgram.compile(model, objective, cross_terms=True)
    try:
        _, gramian = step(X)
    except fxgram.CaptureError as error:
        assert "differentiate" in str(error)  # noqa: PT017
        return
    rows = jacobian(objective(model, X), trainable(model).values())
    assert_gramian_close(gramian, rows @ rows.T, 1e-9)
