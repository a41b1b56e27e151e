"""One weight used by unlike operators: exact cross terms by pairing, or by adding gradients."""

import pytest
import torch
import torch.nn.functional as F
from live_bytes import LiveBytes
from torch import nn

import fxgram

WIDTH, POSITIONS, SAMPLES = 32, 5, 4


class Tied(nn.Module):
    """An embedding that is the output projection too, twice, and a matrix used both ways."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.square = nn.Parameter(torch.randn(WIDTH, WIDTH) / 6)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        table = self.embedding.weight
        h = torch.tanh(self.embedding(ids) @ self.square)
        h = self.norm(h @ self.square.t() + F.linear(h, self.square))
        return h @ table.t() + F.linear(h * h, table) + self.embedding(ids).sum(-1, keepdim=True)


def next_tokens(model, ids):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def build(vocabulary):
    torch.manual_seed(0)
    ids = torch.randint(vocabulary, (SAMPLES, POSITIONS))
    return Tied(vocabulary).double(), ids


def jacobian(model, ids):
    parameters = list(model.parameters())
    rows = [torch.autograd.grad(loss, parameters, retain_graph=True)
            for loss in next_tokens(model, ids)]  # fmt: skip
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


@pytest.mark.parametrize(
    ("vocabulary", "options", "contraction"),
    [
        (7, {}, "gradients, kept"),
        (7, {"retain": "recompute"}, "gradients"),
        (400, {"memory_budget": 100_000}, "pairs"),
        (3000, {}, "pairs"),
    ],
)
def test_cross_terms_of_a_tied_head(vocabulary, options, contraction):
    model, ids = build(vocabulary)
    step = fxgram.compile(model, next_tokens, cross_terms=True, **options)
    losses, gramian = step(ids)
    rows = jacobian(model, ids)
    torch.testing.assert_close(gramian, rows @ rows.T, rtol=1e-10, atol=1e-12)
    weights = torch.rand(SAMPLES, dtype=torch.float64)
    losses.backward(weights)
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(gradient, weights @ rows, rtol=1e-10, atol=1e-12)
    tied = [use for use in step.uses if use.parameter == "embedding.weight"]
    assert len(tied) == 4
    assert tied[0].contraction.startswith(contraction)


def test_both_ways_of_one_matrix_are_one_product():
    model, ids = build(7)
    step = fxgram.compile(model, next_tokens, cross_terms=True).prepare(ids)
    (factors,) = {use.factors for use in step.uses if use.parameter == "square"}
    assert factors == "kso,ksi->oi"


def test_no_gradient_of_the_table_for_each_sample():
    vocabulary = 20000
    model, ids = build(vocabulary)
    step = fxgram.compile(model, next_tokens, cross_terms=True, retain="recompute", check=False)
    with torch.no_grad():
        step(ids)
        largest = []
        with LiveBytes() as live:
            step(ids)
            largest.append(max(size for _, size in live._seen.values()))
    assert max(largest) < SAMPLES * vocabulary * WIDTH * 8
