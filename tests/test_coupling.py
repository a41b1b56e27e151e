"""Samples that depend on each other are refused, naming the operator and the line."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxgram

K = 5
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def linear():
    return nn.Linear(3, 4)


def batch_normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))


def sequence():
    return nn.ModuleList([nn.Linear(3, 4), nn.MultiheadAttention(4, 2, bias=False)])


def rows(y):
    return y.square().sum(1)


def mean_over_batch(m, x):
    y = m(x)
    return rows(y - y.mean(0))


def losses_minus_their_mean(m, x):
    losses = rows(m(x))
    return losses - losses.mean()


def losses_over_their_sum(m, x):
    losses = rows(m(x))
    return losses / losses.sum()


def in_batch_negatives(m, x):
    logits = m(x) @ m(2 * x).t()
    return F.cross_entropy(logits, torch.arange(len(x)), reduction="none")


def sample_zero_is_the_anchor(m, x):
    y = m(x)
    return rows(y - y[:1])


def sample_zero_selected(m, x):
    y = m(x)
    return (y * y[0]).sum(1)


def last_sample_is_the_anchor(m, x):
    y = m(x)
    return rows(y - y[-1])


def flipped(m, x):
    y = m(x)
    return rows(y * y.flip(0).sin())


def reordered(m, x):
    return rows(m(x).flip(0))


def rolled(m, x):
    y = m(x)
    return rows(y - y.roll(1, 0))


def permuted(m, x, order):
    y = m(x)
    return rows(y * y[order])


def softmax_over_batch(m, x):
    return rows(m(x).softmax(0))


def cumulated(m, x):
    return rows(m(x).cumsum(0))


def normalized_over_batch(m, x):
    return rows(F.normalize(m(x), dim=0) * x.sum())


def sorted_over_batch(m, x):
    return rows(m(x).sort(0).values)


def distances(m, x):
    y = m(x)
    return torch.cdist(y, y.sin()).mean(1)


def viewed_across_samples(m, x):
    return rows(m(x).t().reshape(len(x), 4))


def attention_across_samples(m, x):
    hidden = m[0](x).unsqueeze(1)  # [K, 1, 4], taken for a sequence of length K
    return rows(m[1](hidden, hidden, hidden, need_weights=False)[0].squeeze(1))


def shifted_targets(m, x):
    y = m(x)
    return rows(torch.cat([y[1:], y[:1]]) - x.sum(1, keepdim=True))


def similarities(m, x):
    """Samples against data of all: `[K, K]`, the first axis of which is the samples'."""
    return m(x) @ torch.cat([x, x[:, :1]], 1).t()


def best_sample_for_each_key(m, x):
    return similarities(m, x).amax(0)


def softmax_over_queries(m, x):
    return similarities(m, x).softmax(0).square().sum(1)


def keys_against_samples(m, x):
    return F.cross_entropy(similarities(m, x).t(), torch.arange(len(x)), reduction="none")


def similarities_to_one_sample(m, x):
    return similarities(m, x).select(0, -1)


def keys_with_gradient_after_all(m, x):
    y = m(x)
    return (y @ y.t().detach()).logsumexp(1) + (y.detach() @ y.t()).logsumexp(1)


def second_half_for_the_first(m, x):
    """Sample-major pairs, taken apart as if they lay behind each other."""
    one, other = m(torch.stack([x, x.sin()], 1).flatten(0, 1)).chunk(2)
    return rows(one - other)


def part_that_begins_in_a_block(m, x):
    return rows(m(torch.cat([x, x.sin()]))[1 : len(x) + 1])


def every_second_of_blocks(m, x):
    return rows(m(torch.cat([x, x.sin()]))[::2])


def small_coupling(m, x):
    y = m(x)
    return rows(y + 1e-4 * y.roll(1, 0))


# the model, the losses, and the operator that couples their samples
COUPLED = [
    (batch_normed, lambda m, x: rows(m(x)), "batch_norm"),
    (linear, mean_over_batch, "mean"),
    (linear, losses_minus_their_mean, "mean"),
    (linear, losses_over_their_sum, "sum"),
    (linear, in_batch_negatives, "matmul"),
    (linear, sample_zero_is_the_anchor, "slice"),
    (linear, sample_zero_selected, "select"),
    (linear, last_sample_is_the_anchor, "select"),
    (linear, flipped, "flip"),
    (linear, reordered, "flip"),
    (linear, rolled, "roll"),
    (linear, softmax_over_batch, "softmax"),
    (linear, cumulated, "cumsum"),
    (linear, normalized_over_batch, "norm"),
    (linear, sorted_over_batch, "sort"),
    (linear, distances, "cdist"),
    (linear, viewed_across_samples, "reshape"),
    (linear, small_coupling, "roll"),
    (linear, best_sample_for_each_key, "amax"),
    (linear, softmax_over_queries, "softmax"),
    (linear, keys_against_samples, "cross_entropy"),
    (linear, similarities_to_one_sample, "select"),
    (linear, keys_with_gradient_after_all, "logsumexp"),
    (linear, second_half_for_the_first, "split"),
    (linear, part_that_begins_in_a_block, "slice"),
    (linear, every_second_of_blocks, "slice"),
    (sequence, attention_across_samples, ""),
]


def build(make):
    torch.manual_seed(0)
    return make().double()


@pytest.mark.parametrize(
    ("make", "objective", "named"), COUPLED, ids=lambda v: getattr(v, "__name__", None)
)
def test_coupled_samples_are_refused(make, objective, named):
    with pytest.raises(fxgram.CoupledSamples, match=r"different samples depend.*batch_dim=0"):
        fxgram.compile(build(make), objective)(X)


@pytest.mark.parametrize(
    ("make", "objective", "named"), COUPLED, ids=lambda v: getattr(v, "__name__", None)
)
def test_message_names_operator_and_line(make, objective, named):
    with pytest.raises(fxgram.CoupledSamples) as caught:
        fxgram.compile(build(make), objective)(X)
    message = str(caught.value)
    assert re.search(rf"`\w*{named}\w*`", message), f"does not name the operator: {message}"
    assert "test_coupling.py:" in message, f"does not name the user's line: {message}"


def test_shifted_targets_are_refused():
    with pytest.raises((fxgram.CoupledSamples, fxgram.CaptureError), match="samples"):
        fxgram.compile(build(linear), shifted_targets)(X)


@pytest.mark.parametrize("k", [2, 3, 32])
@pytest.mark.parametrize(
    "objective", [sample_zero_selected, flipped, rolled], ids=lambda f: f.__name__
)
def test_at_other_batch_sizes(objective, k):
    with pytest.raises(fxgram.CoupledSamples):
        fxgram.compile(build(linear), objective)(torch.randn(k, 3, dtype=torch.float64))


def test_in_single_precision():
    with pytest.raises(fxgram.CoupledSamples):
        fxgram.compile(build(linear).float(), small_coupling)(X.float())


def test_order_from_the_batch():
    with pytest.raises(fxgram.CoupledSamples):
        fxgram.compile(build(linear), permuted)(X, torch.tensor([1, 2, 0, 4, 3]))


def test_after_a_first_batch_of_one_sample():
    step = fxgram.compile(build(linear), sample_zero_is_the_anchor)
    step(X[:1])
    with pytest.raises(fxgram.CoupledSamples):
        step(X)


def test_a_refused_program_is_not_kept():
    step = fxgram.compile(build(linear), rolled)
    for _ in range(2):
        with pytest.raises(fxgram.CoupledSamples):
            step(X)
