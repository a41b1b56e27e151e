"""The zoo itself, without fxgram: cases are deterministic, independent, and truly untied."""

import pytest
import torch
from oracle import (
    assert_close_relative,
    assert_gradients_close,
    evaluate,
    gradient_of,
    jacobian,
    sum_over_copies,
    trainable,
)
from zoo import CASES
from zoo.sample import one_sample

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
with_twin = [case for case in CASES if case.untied is not None]
deterministic = [case for case in CASES if not case.random and max(case.sizes) > 1 and case.alone]


def _losses(case, model, batch, seed=0):
    torch.manual_seed(seed)
    return evaluate(model, case.objective, batch)


def test_names_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


@by_name
def test_every_size_gives_one_loss_per_sample(case):
    for k in case.sizes:
        losses = _losses(case, case.make(), case.batch(k))
        assert losses.dtype == torch.float64
        assert losses.dim() >= 1
        assert len(losses) == k
        assert losses.isfinite().all()
        assert losses.requires_grad


@by_name
def test_same_seed_same_losses(case):
    k = max(k for k in case.sizes if k <= 3)
    first, second = (_losses(case, case.make(), case.batch(k)) for _ in range(2))
    assert torch.equal(first, second)


@by_name
def test_seed_matters_only_where_marked(case):
    k = max(k for k in case.sizes if k <= 3)
    first, second = (_losses(case, case.make(), case.batch(k), seed) for seed in (0, 1))
    assert torch.equal(first, second) is not case.random


@by_name
def test_some_gradient_is_there(case):
    k = max(case.sizes)
    model = case.make()
    rows = jacobian(_losses(case, model, case.batch(k)), trainable(model).values())
    assert rows.isfinite().all()
    assert (rows != 0).any(1).sum() >= 2


@pytest.mark.parametrize("case", with_twin, ids=lambda case: case.name)
def test_twin_is_the_same_model_with_one_copy_per_use(case):
    model, (twin, originals) = case.make(), case.twin()
    assert set(originals.values()) == dict(model.named_parameters()).keys()
    assert len(originals) > len(set(originals.values()))
    for k in case.sizes:
        batch = case.batch(k)
        losses, twin_losses = _losses(case, model, batch), _losses(case, twin, batch)
        assert_close_relative(twin_losses, losses, max(case.rtol, 1e-12), "losses")
        weights = torch.linspace(-1, 2, losses.numel(), dtype=losses.dtype).view_as(losses)
        copies = gradient_of(twin_losses, trainable(twin), weights)
        expected = gradient_of(losses, trainable(model), weights)
        assert_gradients_close(sum_over_copies(copies, originals), expected, case.rtol)


@pytest.mark.parametrize("case", deterministic, ids=lambda case: case.name)
def test_samples_are_independent(case):
    k = max(k for k in case.sizes if k <= 3)
    model, batch = case.make(), case.batch(k)
    losses = _losses(case, model, batch)
    rows = jacobian(losses, trainable(model).values()).view(*losses.shape, -1)
    for sample in range(k):
        alone = case.make()
        loss = _losses(case, alone, one_sample(batch, case.batch_dim, sample))
        row = jacobian(loss, trainable(alone).values()).view(*loss.shape, -1)
        assert_close_relative(loss[0], losses[sample], case.rtol, "loss")
        assert_close_relative(row[0], rows[sample], case.rtol, "row")
