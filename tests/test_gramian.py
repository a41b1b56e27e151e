"""Losses, Gramian and gradients of one compiled step equal eager autograd's, over the zoo.

One step is fed all batch sizes of a case in turn, so that later shapes meet earlier programs.
"""

from copy import deepcopy

import pytest
import torch
from oracle import (
    assert_close_relative,
    assert_gradients_close,
    assert_gramian_close,
    evaluate,
    gradient_of,
    gramian,
    trainable,
)
from zoo import CASES

import fxgram

SINGLE = [case for case in CASES if not (case.large or case.fallback) and case.rtol <= 1e-9][::3]


def _name(case):
    return case.name


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_default_mode_equals_the_untied_oracle(case):
    check_case(case, torch.float64, case.rtol)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.large], ids=_name)
def test_one_sample_of_a_large_model(case):
    check_case(case, torch.float64, case.rtol, sizes=(1,))


@pytest.mark.parametrize("case", SINGLE, ids=_name)
def test_single_precision(case):
    check_case(case, torch.float32, 1e-4, sizes=(2, 3))


@pytest.mark.parametrize("case", [case for case in CASES if case.untied], ids=_name)
def test_cross_terms_equal_the_tied_oracle(case):
    model = case.make()
    step = fxgram.compile(model, case.objective, batch_dim=case.batch_dim, cross_terms=True)
    for k in case.sizes:
        batch, eager = case.batch(k), deepcopy(model)
        torch.manual_seed(k)
        expected = gramian(eager, case.objective, batch)
        torch.manual_seed(k)
        _, actual = step(*batch)
        assert_gramian_close(actual, expected, case.rtol, f"K={k}")


def check_case(case, dtype, rtol, sizes=None):
    """Run one step over the sizes, each time against an eager copy of the model as it then is."""
    model, twin = case.make(dtype), case.twin(dtype)
    step = fxgram.compile(model, case.objective, batch_dim=case.batch_dim)
    for k in sizes or case.sizes:
        batch, eager = case.batch(k, dtype), deepcopy(model)
        expected_gramian = _expected_gramian(case, model, twin, batch, k)
        torch.manual_seed(k)
        expected = evaluate(eager, case.objective, batch)
        drawn = torch.get_rng_state()

        torch.manual_seed(k)
        losses, actual_gramian = step(*batch)

        assert torch.equal(torch.get_rng_state(), drawn), "drew other random numbers than eager"
        assert_close_relative(losses.detach(), expected.detach(), rtol, f"K={k} losses")
        assert torch.equal(actual_gramian, actual_gramian.T), "not symmetric to the bit"
        assert_gramian_close(actual_gramian, expected_gramian, rtol, f"K={k}")
        _check_backward(model, eager, losses, expected, rtol)
        for name, tensor in eager.state_dict().items():
            actual = model.state_dict()[name]
            torch.testing.assert_close(actual, tensor, msg=lambda m, n=name: f"{n}: {m}")


def _expected_gramian(case, model, twin, batch, seed):
    if twin is None:
        reference = deepcopy(model)
    else:
        reference, _ = twin
        case.copy_state(model, reference)
    torch.manual_seed(seed)
    return gramian(reference, case.objective, batch)


def _check_backward(model, eager, losses, expected, rtol):
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    weights = weights.to(expected.dtype)
    model.zero_grad(set_to_none=True)
    losses.backward(weights)
    assert_gradients_close(
        {name: p.grad for name, p in trainable(model).items()},
        gradient_of(expected, trainable(eager), weights),
        rtol,
    )
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
    model.zero_grad(set_to_none=True)
