"""`step.passes`: a table of the passes, and the graph after each of them."""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn
from zoo.free import Free

import fxgram
import passes
from passes.use import is_use

K, D = 3, 3
W = {"w": (D, D)}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).sigmoid())


class CalledTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(D, D)

    def forward(self, x):
        return self.layer(self.layer(x).tanh())


class SameCallTwice(CalledTwice):
    def forward(self, x):
        return self.layer(x).sin() + self.layer(x).cos()


def transposed_once(m, x):
    wt = m.w.t()
    return x @ wt + x.sin() @ wt


def transposed_twice(m, x):
    return x @ m.w.t() + x.sin() @ m.w.t()


def weight_normed(m, x):
    return nn.functional.linear(x, m.g * m.w / m.w.norm())


def unused_chunk(m, x):
    first, _ = m.w.chunk(2, 1)
    return x @ first


def looked_at(m, x):
    return x @ m.w + m.w.detach().sum().cos() * x + m.w.argmax()


# how to build it, and how often each parameter is used
USES = {
    "tied": (Tied, {"first.weight": 2, "first.bias": 1, "second.bias": 1}),
    "called_twice": (CalledTwice, {"layer.weight": 2, "layer.bias": 2}),
    "same_call_twice": (SameCallTwice, {"layer.weight": 2, "layer.bias": 2}),
    "weight_used_twice": (lambda: Free(lambda m, x: (x @ m.w).tanh() @ m.w, **W), {"w": 2}),
    "transposed_once": (lambda: Free(transposed_once, **W), {"w": 2}),
    "transposed_twice": (lambda: Free(transposed_twice, **W), {"w": 2}),
    "weight_normed": (lambda: Free(weight_normed, g=(D, 1), **W), {"w": 1, "g": 1}),
    "unused_chunk": (lambda: Free(unused_chunk, w=(D, 4)), {"w": 1}),
    "expanded": (lambda: Free(lambda m, x: m.v.expand(len(x), -1) * x, v=(D,)), {"v": 1}),
    "expanded_used_twice": (
        lambda: Free(lambda m, x: (e := m.v.expand(len(x), -1)) * x + e * x.sin(), v=(D,)),
        {"v": 2},
    ),
    "squared": (lambda: Free(lambda m, x: x * (m.v * m.v), v=(D,)), {"v": 1}),
    "looked_at_without_gradient": (lambda: Free(looked_at, **W), {"w": 1}),
}


def squares(model, x):
    return model(x).square().sum(1)


def compiled(build):
    torch.manual_seed(0)
    step = fxgram.compile(build().double(), squares)
    step(torch.randn(K, D, dtype=torch.float64))
    return step


@pytest.fixture(scope="module")
def step():
    """Give a compiled step of a model with a weight used twice."""
    return compiled(CalledTwice)


@pytest.mark.parametrize("name", USES)
def test_every_use_is_a_node_of_its_own(name):
    build, wanted = USES[name]
    step = compiled(build)
    record = step.passes["split_uses"]
    assert isinstance(record.graph, torch.fx.GraphModule)
    record.graph.graph.lint()
    marked = [node for node in record.graph.graph.nodes if is_use(node)]
    assert len(marked) == record.uses == sum(wanted.values())
    counts = {}
    for row in step.uses:
        counts[row.parameter] = counts.get(row.parameter, 0) + 1
    assert counts == wanted


def test_no_use_is_shared_between_operators_that_see_data():
    graph = compiled(lambda: Free(transposed_once, **W)).passes["split_uses"].graph.graph
    placeholder = next(n for n in graph.nodes if n.op == "placeholder" and n.name.endswith("_w"))
    assert len(placeholder.users) == 2
    assert all(is_use(user) for user in placeholder.users)
    for use in placeholder.users:
        (transpose,) = use.users
        (product,) = transpose.users
        assert "matmul" in str(product.target)


class InPlace(nn.Module):
    """In-place ReLU, residual add, and a write into a slice."""

    def __init__(self):
        super().__init__()
        self.layer, self.relu = nn.Linear(D, D), nn.ReLU(inplace=True)

    def forward(self, x):
        hidden = self.relu(self.layer(x)) * 2
        hidden += x
        hidden[:, 0] = hidden[:, 1] * 2
        return hidden


def _mutating(graph):
    return [
        node
        for node in graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    ]


def test_nothing_is_written_in_place_after_functionalize():
    step = compiled(InPlace)
    names = [record.name for record in step.passes]
    assert _mutating(step.passes["canonicalize"].graph.graph)
    for name in names[names.index("functionalize") :]:
        assert not _mutating(step.passes[name].graph.graph), name


def test_table(step):
    table = str(step.passes)
    names = [apply.__name__ for apply in passes.PASSES]
    assert [record.name for record in step.passes] == names
    assert len(step.passes) == len(names)
    head, *body = table.splitlines()
    assert all(word in head for word in ("nodes", "uses", "ms"))
    for name in names:
        (row,) = [line for line in body if line.split()[0] == name]
        record = step.passes[name]
        assert str(record.nodes_after) in row.split()
        assert record.milliseconds >= 0
    counts = [record.nodes_after for record in step.passes]
    assert [record.nodes_before for record in step.passes][1:] == counts[:-1]


def test_unknown_pass_is_named(step):
    with pytest.raises(KeyError, match=r"nosuch.*split_uses"):
        step.passes["nosuch"]


def test_graph_after_a_pass_prints(step):
    graph = step.passes["split_uses"].graph
    assert "use" in graph.code
    assert graph.code == step.passes["split_uses"].graph.code


def test_passes_know_nothing_of_fxgram():
    home = Path(passes.__file__).parent
    for path in home.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path.name}: relative import"
                names = [node.module]
            for name in names:
                assert name.split(".")[0] != "fxgram", f"{path.name} imports {name}"
