"""What goes in and what comes out: several arguments, trees, shared arguments, other axes."""

import torch
from torch import Tensor, nn

from .case import Case, cross_entropy, mean_squares
from .free import Free

D = 3


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(D, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.left(x).tanh() * self.right(y)


class SeveralOutputs(TwoInputs):
    """Outputs of different shapes; one of them is an input of the other."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left = self.left(x)
        return left, self.right(y) * left, left.sum(1)


class Trees(TwoInputs):
    """Nested dict, list and tuple on both sides."""

    def forward(self, inputs: dict) -> dict:
        x, (y, scale) = inputs["x"], inputs["rest"]
        left = self.left(x) * scale["scale"][:, None]
        return {"pair": (left, [self.right(y)]), "sum": {"deep": left + self.right.bias.detach()}}


class OptionalMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        x = self.linear(x) * scale
        return x if mask is None else x.masked_fill(mask, 0.1)


class Context(nn.Module):
    """Every sample attends to one context that the batch shares."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(D, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return torch.softmax(self.query(x) @ self.key(context).t(), dim=-1) @ context


class ContextInTree(Context):
    def forward(self, inputs: dict) -> Tensor:
        context, negative = inputs["rest"]
        return super().forward(inputs["x"], context) * torch.where(negative, -1.0, 1.0)[:, None]


class SequenceFirst(nn.Module):
    """Takes and returns `[t, k, d]`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(D, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x).relu())


def _tree(draw, k):
    return ({"x": draw.normal(k, D), "rest": [draw.normal(k, 4), {"scale": draw.normal(k)}]},)


def _two(draw, k):
    return draw.normal(k, D), draw.normal(k, 4)


def _with_targets(model: nn.Module, x: Tensor, targets: Tensor) -> Tensor:
    return (model(x) - targets).abs().sum(1)


def _temperature(model: nn.Module, x: Tensor, temperature: Tensor) -> Tensor:
    return (model(x) / temperature).logsumexp(1)


def _second_axis(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean((0, 2))


def _sum_over_dict(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return mean_squares(model, batch["x"]) * batch["weight"]


def _shaped(name: str, *dims: int) -> Case:
    """Make a case whose model returns `[k, *dims]`."""

    def build() -> nn.Module:
        out = torch.Size(dims).numel()
        return Free(lambda m, x: (x @ m.w).view(-1, *dims).sin(), w=(D, out))

    def draw(draw, k):
        return (draw.normal(k, D),)

    return Case(name, build, draw)


CASES = (
    Case("two_inputs", TwoInputs, _two),
    Case("several_outputs", SeveralOutputs, _two),
    Case("trees_in_and_out", Trees, _tree),
    Case("mask_argument", OptionalMask, lambda draw, k: (draw.normal(k, D), draw.mask(k, D))),
    Case("none_argument", OptionalMask, lambda draw, k: (draw.normal(k, D), None)),
    Case("python_number_argument", OptionalMask, lambda draw, k: (draw.normal(k, D), None, 0.5)),
    Case(
        "targets",
        lambda: nn.Linear(D, 2),
        lambda draw, k: (draw.normal(k, D), draw.normal(k, 2)),
        _with_targets,
    ),
    Case(
        "cross_entropy",
        lambda: nn.Linear(D, 5),
        lambda draw, k: (draw.normal(k, D), draw.ids(5, k)),
        cross_entropy,
    ),
    Case(
        "zero_dim_argument_is_shared",
        lambda: nn.Linear(D, 2),
        lambda draw, k: (draw.normal(k, D), draw.normal().exp()),
        _temperature,
    ),
    Case(
        "shared_argument",
        Context,
        lambda draw, k: (draw.normal(k, D), draw.normal(5, 4)),
        batch_dim=(0, None),
    ),
    Case(
        "shared_argument_as_long_as_the_batch",
        Context,
        lambda draw, k: (draw.normal(k, D), draw.normal(3, 4)),
        batch_dim=(0, None),
        sizes=(3, 8, 1),
    ),
    Case(
        "shared_argument_in_a_tree",
        ContextInTree,
        lambda draw, k: ({"x": draw.normal(k, D), "rest": [draw.normal(5, 4), draw.mask(k)]},),
        batch_dim=({"x": 0, "rest": [None, 0]},),
    ),
    Case(
        "sequence_first_input",
        SequenceFirst,
        lambda draw, k: (draw.normal(4, k, D),),
        _second_axis,
        batch_dim=(1,),
    ),
    Case(
        "dict_batch",
        lambda: nn.Linear(D, 2),
        lambda draw, k: ({"x": draw.normal(k, D), "weight": draw.normal(k)},),
        _sum_over_dict,
    ),
    _shaped("outputs_of_no_dim"),
    _shaped("outputs_of_one_dim", 2),
    _shaped("outputs_of_two_dims", 2, 3),
    _shaped("outputs_of_three_dims", 2, 1, 3),
    _shaped("outputs_of_four_dims", 2, 2, 1, 3),
)
