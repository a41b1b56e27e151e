"""`batch_dim=None`: losses that share samples, of any shape, against the oracle."""

from copy import deepcopy

import pytest
import torch
from oracle import assert_gramian_close, gramian
from test_gramian import check_case
from zoo.coupled import CASES, BatchNormed, D, Encoder, pairs, per_sample

import fxgram


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_default_mode_equals_the_untied_oracle(case):
    check_case(case, torch.float64, 1e-9)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cross_terms_equal_the_oracle(case):
    model = case.make()
    step = fxgram.compile(model, case.objective, batch_dim=None, cross_terms=True)
    for k in case.sizes:
        batch, eager = case.batch(k), deepcopy(model)
        torch.manual_seed(k)
        expected = gramian(eager, case.objective, batch)
        torch.manual_seed(k)
        assert_gramian_close(step(*batch)[1], expected, 1e-9, f"K={k}")


def test_statistics_are_updated_once():
    case = next(case for case in CASES if case.name == "batch_norm_1d")
    model = case.make()
    step = fxgram.compile(model, case.objective, batch_dim=None)
    for count in (1, 2, 3):
        step(*case.batch(3))
        assert model.norm.num_batches_tracked == count


def test_plain_means_of_the_statistics_over_several_batches():
    """`momentum=None` moves them by 1 / n in the n-th step, also by a program made earlier."""
    torch.manual_seed(0)
    model = BatchNormed(None).double()
    eager = deepcopy(model)
    step = fxgram.compile(model, per_sample, batch_dim=None)
    for seed in range(4):
        x = torch.randn(3, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for run in (step, lambda x, y: per_sample(eager, x, y)):
            run(x, torch.tensor([0, 1, 2]))
        for (name, buffer), other in zip(model.named_buffers(), eager.named_buffers(), strict=True):
            torch.testing.assert_close(buffer, other[1], msg=lambda m, n=name: f"{n}: {m}")
    assert "forward" not in vars(model.norm)


def test_uses_are_explained_as_losses():
    torch.manual_seed(0)
    model = Encoder()
    step = fxgram.compile(model, pairs, batch_dim=None)
    step(torch.randn(3, D))
    assert {use.method for use in step.uses} == {"losses"}


@pytest.mark.parametrize("weights", ["scalar", "matrix"])
def test_weights_have_the_shape_of_the_losses(weights):
    torch.manual_seed(0)
    model, x = Encoder().double(), torch.randn(3, D, dtype=torch.float64)

    def objective(model, x):
        found = pairs(model, x)
        return found.sum() if weights == "scalar" else found

    losses, matrix = fxgram.compile(model, objective, batch_dim=None)(x)
    assert matrix.shape == (losses.numel(), losses.numel())
    given = torch.linspace(-1, 2, losses.numel(), dtype=torch.float64).view_as(losses)
    expected = torch.autograd.grad(objective(model, x), list(model.parameters()), given)
    if weights == "scalar":
        (losses * given).backward()
    else:
        losses.flatten().backward(given.flatten())
    for param, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(param.grad, grad, rtol=1e-9, atol=1e-12)
