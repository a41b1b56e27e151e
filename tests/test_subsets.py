"""Every subset of the parameters may be the trainable one, the others frozen."""

import random
from itertools import combinations

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

K = 3


def _count(case):
    return len(trainable(case.make()))


SMALL = [case for case in CASES if not (case.large or case.fallback) and 1 < _count(case) <= 4]
LARGER = [case for case in CASES if not (case.large or case.fallback) and _count(case) > 4][::5]


def _thinned(cases):
    """Every fourth case; the others are run with `-m slow`, each compiles a dozen programs."""
    return [
        pytest.param(case, id=case.name, marks=() if at % 4 == 0 else pytest.mark.slow)
        for at, case in enumerate(cases)
    ]


@pytest.mark.parametrize("case", _thinned(SMALL))
def test_every_subset(case):
    names = list(trainable(case.make()))
    for count in range(1, len(names) + 1):
        for subset in combinations(names, count):
            check_subset(case, set(subset))


@pytest.mark.parametrize("case", _thinned(LARGER))
def test_ten_random_subsets(case):
    chosen, names = random.Random(0), list(trainable(case.make()))
    for _ in range(10):
        check_subset(case, set(chosen.sample(names, chosen.randint(1, len(names)))))


def check_subset(case, subset):
    """Freeze all parameters of the case but `subset`, in the model and in its twin."""
    model, eager, (reference, originals) = case.make(), case.make(), _reference(case)
    for frozen in (model, eager):
        for name, param in frozen.named_parameters():
            param.requires_grad_(name in subset)
    for name, param in reference.named_parameters():
        param.requires_grad_(originals[name] in subset)
    batch = case.batch(K)

    torch.manual_seed(0)
    try:
        expected = evaluate(eager, case.objective, batch)
    except RuntimeError as error:
        if "hook" in str(error):
            return  # eager takes no hooks on what does not require grad
        raise
    if not expected.requires_grad:
        return  # none of the subset is used: there is nothing to compile
    torch.manual_seed(0)
    expected_gramian = gramian(reference, case.objective, batch)
    if expected_gramian.abs().max() < 1e-15:
        return  # a norm behind it cancels the gradient up to its eps: what is left is rounding
    torch.manual_seed(0)
    losses, actual_gramian = fxgram.compile(model, case.objective, batch_dim=case.batch_dim)(*batch)
    assert_close_relative(losses.detach(), expected.detach(), case.rtol, f"{subset} losses")
    assert_gramian_close(actual_gramian, expected_gramian, case.rtol, f"{subset}")

    weights = torch.linspace(-1, 2, expected.numel(), dtype=expected.dtype).view_as(expected)
    losses.backward(weights)
    assert_gradients_close(
        {name: p.grad for name, p in trainable(model).items()},
        gradient_of(expected, trainable(eager), weights),
        case.rtol,
    )
    assert all(p.grad is None for name, p in model.named_parameters() if name not in subset)


def _reference(case):
    """Return the module whose oracle is the default mode's answer, and its names' originals."""
    if case.untied is not None:
        return case.twin()
    model = case.make()
    return model, {name: name for name, _ in model.named_parameters()}
