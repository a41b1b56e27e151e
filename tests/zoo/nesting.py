"""Modules inside modules: depth, branches, children called in unusual ways."""

import torch
from torch import Tensor, nn

from .case import Case

D = 3


def _block(depth: int) -> nn.Module:
    """Nest sequentials `depth` deep around one linear layer."""
    return nn.Linear(D, D) if depth == 0 else nn.Sequential(nn.Sequential(_block(depth - 1)))


class OverlyNested(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(_block(4), nn.Tanh(), nn.Sequential(_block(1), nn.Sequential(nn.ReLU())))


class Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Branches(nn.Module):
    """Two branches of different depth that rejoin; one of them splits and rejoins once more."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(D, 4)
        self.short = nn.Linear(4, 2)
        self.long = nn.Sequential(Residual(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 2))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        short, long = self.short(x), self.long(x)
        return self.head(torch.cat([short * long, short + long], dim=1))


class FillsDict(nn.Module):
    """Returns nothing: the result goes into a dict of the caller."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        self.linear = nn.Linear(D, 2)

    def forward(self, x: Tensor, results: dict[str, Tensor]) -> None:
        results[self.key] = self.linear(x)


class ChildrenReturnNothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.children_ = nn.ModuleList(FillsDict(key) for key in "ab")

    def forward(self, x: Tensor) -> Tensor:
        results: dict[str, Tensor] = {}
        for child in self.children_:
            child(x, results)
        return results["a"] * results["b"].sigmoid()


class WithoutInputs(nn.Module):
    """Takes nothing: returns what its parameters make."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(2))

    def forward(self) -> Tensor:
        return self.bias.tanh()


class ChildWithoutInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.offset = nn.Linear(D, 2), WithoutInputs()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.offset()


class Containers(nn.Module):
    """Parameters and modules in lists and dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.randn(D) for _ in range(2))
        self.offsets = nn.ParameterDict({"a": torch.randn(D), "b": torch.randn(())})
        self.layers = nn.ModuleDict({"in": nn.Linear(D, D), "out": nn.Linear(D, 1)})

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = x * scale
        x = self.layers["in"](x + self.offsets["a"]).tanh()
        return self.layers["out"](x + self.offsets["b"])


class KeywordCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.conv = nn.Linear(D, 4), nn.LayerNorm(4), nn.Conv1d(1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(input=self.layer(input=x))
        return self.conv(input=torch.unsqueeze(input=x, dim=1))


class PicksChild(nn.Module):
    """Calls one of its children; the other one stays unused."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(D, 2) for _ in range(2))
        self.chosen = 1

    def forward(self, x: Tensor) -> Tensor:
        return self.experts[self.chosen](x)


class DenselyConnected(nn.Module):
    """Every layer sees all earlier outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D + 2 * depth, 2) for depth in range(4))

    def forward(self, x: Tensor) -> Tensor:
        seen = [x]
        for layer in self.layers:
            seen.append(layer(torch.cat(seen, dim=1)).sin())
        return seen[-1]


def _vectors(draw, k):
    return (draw.normal(k, D),)


CASES = (
    Case("one_linear", lambda: nn.Linear(D, 2), _vectors),
    Case("linear_without_bias", lambda: nn.Linear(D, D, bias=False), _vectors),
    Case("linear_to_one", lambda: nn.Linear(D, 1), _vectors),
    Case("linear_from_one", lambda: nn.Linear(1, 2), lambda draw, k: (draw.normal(k, 1),)),
    Case(
        "perceptron",
        lambda: nn.Sequential(
            nn.Linear(D, 5), nn.ReLU(), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 2)
        ),
        _vectors,
    ),
    Case("overly_nested_sequentials", OverlyNested, _vectors),
    Case("residual_inside_residual", lambda: Residual(Residual(nn.Linear(D, D))), _vectors),
    Case("branches_rejoin", Branches, _vectors),
    Case("densely_connected", DenselyConnected, _vectors),
    Case("children_return_nothing", ChildrenReturnNothing, _vectors),
    Case("child_without_inputs", ChildWithoutInputs, _vectors),
    Case("parameter_and_module_containers", Containers, _vectors),
    Case("keyword_calls", KeywordCalls, _vectors),
    Case("picks_a_child", PicksChild, _vectors),
)
