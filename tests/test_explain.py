"""`step.explain()`, `step.uses` and `print(step)`: one row for each use of a parameter."""

import json

import pytest
import torch
from torch import nn

import fxgram

K = 6


class Model(nn.Module):
    """A rule for each layer; `scale` enters through arithmetic; cdist has no rule for p=1."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 4, bias=False), nn.LayerNorm(4, bias=False)
        self.scale, self.points = nn.Parameter(torch.rand(5, 1)), nn.Parameter(torch.rand(5, 4))

    def forward(self, x):
        hidden = self.linear(x).unsqueeze(1)
        hidden = self.norm(hidden)
        return torch.cdist(hidden, self.points.exp() * self.scale, p=1).squeeze(1)


class Positions(nn.Module):
    """The first layer sees positions, the last one none."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 64, bias=False), nn.Linear(64, 7)

    def forward(self, x):
        return self.outer(self.inner(x).tanh().mean(1))


def squares(model, x):
    return model(x).square().sum(1)


def compiled(model, *shape):
    torch.manual_seed(0)
    step = fxgram.compile(model.double(), squares)
    step(torch.randn(K, *shape, dtype=torch.float64))
    return step


@pytest.fixture(scope="module")
def step():
    """Give the step of `Positions` with five positions for each sample."""
    return compiled(Positions(), 5, 3)


def test_one_row_for_each_use(step):
    rows = {row.parameter: row for row in step.explain().rows}
    assert list(rows) == ["inner.weight", "outer.weight", "outer.bias"]
    assert tuple(step.uses) == step.explain().rows
    assert rows["inner.weight"].shape == (64, 3)
    assert {row.op for row in rows.values()} == {"linear"}


def test_rows_name_the_users_line(step):
    for row in step.uses:
        assert "test_explain.py" in row.source
        assert "self.outer(self.inner(x).tanh().mean(1))" in row.source


def test_factors_tell_the_shape_of_the_jacobian(step):
    inner, outer, bias = (row.factors for row in step.uses)
    operands, result = inner.split("->")
    assert len(operands.split(",")) == 2
    assert len(result) == 2
    assert all("k" in term for term in operands.split(","))
    assert set(operands.split(",")[0]) & set(operands.split(",")[1]) - {"k"}, "no summed position"
    assert len(outer.split("->")[0].split(",")) == 2
    assert len(bias.split("->")[0].split(",")) == 1
    assert len(bias.split("->")[1]) == 1


def test_costs_of_the_chosen_contraction(step):
    """Per-sample gradients take `KSIO + K²IO`, pairs `K²S²(I + O)`; `wᵀJ` takes KIO or KSIO."""
    known = {"gradients", "gradients, kept", "pairs", "bias"}
    assert {row.contraction for row in step.uses} <= known
    for row, positions in zip(step.uses, (5, 1, 1), strict=True):
        if row.contraction == "bias":  # added to the pairs of its weight
            assert row.multiply_adds == row.bytes == 0
            continue
        size = torch.Size(row.shape).numel()
        if row.contraction == "pairs":
            expected = (K * positions) ** 2 * sum(row.shape) + K * positions * size
        else:
            weighted = K * size if row.contraction.endswith("kept") else K * positions * size
            expected = K * positions * size + K * K * size + weighted
        assert row.multiply_adds == expected, row
        assert row.bytes > 0
        assert row.seconds > 0


def test_bytes_count_the_dtype(step):
    """Kept per-sample gradients are as large as they say: 8 bytes a number."""
    for row in step.uses:
        if row.contraction == "gradients, kept":
            assert row.kept == row.held == 8 * K * torch.Size(row.shape).numel()
        else:
            assert row.kept == 0
    total = step.explain().kept
    assert total == sum(row.kept for row in step.uses) > 0
    assert "kept" in str(step)


def test_rule_region_and_fallback_are_told_apart():
    step = compiled(Model(), 3)
    methods = {row.parameter: row.method for row in step.uses}
    assert methods["linear.weight"] == methods["norm.weight"] == "rule"
    assert methods["points"] == methods["scale"] == "fallback"
    assert "fallback" in str(step)
    ops = {row.parameter: row.op for row in step.uses}
    assert ops["norm.weight"] == "layer_norm"
    assert ops["points"] == "cdist"


def test_prints_a_table(step):
    text = str(step)
    assert text == repr(step) == str(step.explain())
    for row in step.uses:
        (line,) = [line for line in text.splitlines() if line.startswith(row.parameter)]
        for word in (row.op, row.factors, row.contraction, row.method, row.source):
            assert word in line
    assert "3 uses" in text
    assert "by the cost model" in text
    assert f"K = {K}" in text


def test_follows_the_last_used_program():
    step = compiled(Positions(), 5, 3)
    before = sum(row.multiply_adds for row in step.uses)
    step(torch.randn(4 * K, 5, 3, dtype=torch.float64))
    assert step.explain().samples == 4 * K
    assert sum(row.multiply_adds for row in step.uses) > before


def test_plain_data(step):
    data = step.explain().to_dict()
    assert data["samples"] == K
    assert data["plan"] == "cost"
    assert [use["parameter"] for use in data["uses"]] == [row.parameter for row in step.uses]
    for name in ("multiply_adds", "seconds", "kept"):
        assert data[name] == sum(use[name] for use in data["uses"])
    assert json.loads(json.dumps(data)) == {**data, "uses": json.loads(json.dumps(data["uses"]))}


class Reparametrised(nn.Module):
    """A weight of two parameters: one value meets the samples, two are squared."""

    def __init__(self):
        super().__init__()
        self.length, self.direction = nn.Parameter(torch.rand(4, 1)), nn.Parameter(torch.rand(4, 3))

    def forward(self, x):
        return x @ (self.length * self.direction / self.direction.norm(dim=1, keepdim=True)).t()


def test_what_several_uses_share_is_counted_once():
    """Per-sample gradients of the product, `K·4·3`, then a Gramian for each of its parameters."""
    step = compiled(Reparametrised(), 3)
    first, second = step.uses
    assert {first.method, second.method} == {"region"}
    kept = [row.contraction == "gradients, kept" for row in (first, second)]
    assert all(kept) or not any(kept)

    def squared(row):
        size = torch.Size(row.shape).numel()
        return K * K * size + (K * size if kept[0] else 0)

    shared = K * 4 * 3 * (1 if kept[0] else 2)
    assert first.multiply_adds == squared(first) + shared
    assert second.multiply_adds == squared(second)


def test_before_the_first_call():
    step = fxgram.compile(Positions(), squares)
    assert "not compiled" in str(step)
    for look in (lambda: step.passes, lambda: step.uses, lambda: step.explain()):
        with pytest.raises(fxgram.FxgramError, match=r"[Nn]othing is compiled"):
            look()
