"""A parameter used more than once, with the untied twin written next to each model."""

import torch
from torch import Tensor, nn

from .case import Case
from .free import Free

D = 3
W = {"w": (D, D)}
W2 = {"w1": (D, D), "w2": (D, D)}
TO_W = {"w1": "w", "w2": "w"}


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).tanh())


class CalledTwiceUntied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


class SameCallTwice(CalledTwice):
    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) + self.layer(x)).sin()


class SameCallTwiceUntied(CalledTwiceUntied):
    def forward(self, x: Tensor) -> Tensor:
        return (self.first(x) + self.second(x)).sin()


class Siamese(CalledTwice):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(x) * self.layer(y)


class SiameseUntied(CalledTwiceUntied):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.first(x) * self.second(y)


class SharedWeight(nn.Module):
    """Two modules hold one weight; their biases are their own."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).sigmoid())


class TiedAutoencoder(nn.Module):
    """The decoder is the transposed encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.bias = nn.Linear(D, 2), nn.Parameter(torch.randn(D))

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x).tanh() @ self.encoder.weight + self.bias


class TiedAutoencoderUntied(TiedAutoencoder):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Parameter(torch.randn(2, D))

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x).tanh() @ self.decoder + self.bias


class TransposedLinear(nn.Module):
    """Multiplies by the transpose of a weight that another module holds as well."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, nn.Parameter(torch.randn(D))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.t(), self.bias)


class TransposedInAnother(nn.Module):
    """One weight in two modules, as it is and transposed."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.first = nn.Linear(D, 2)
        own = self.first.weight if tied else nn.Parameter(torch.randn(2, D))
        self.second = TransposedLinear(own)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).sin())


class TiedEmbedding(nn.Module):
    """The output layer is the embedding table."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.table, self.mix, self.head = (
            nn.Embedding(5, D),
            nn.Linear(D, D),
            nn.Linear(D, 5, bias=False),
        )
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.mix(self.table(ids)).relu())


class UsesChildsWeight(nn.Module):
    """The parent multiplies by the child's weight and never calls the child."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.child.weight


class UsesAndCallsChild(UsesChildsWeight):
    def forward(self, x: Tensor) -> Tensor:
        return self.child(x).tanh() @ self.child.weight


class UsesAndCallsChildUntied(UsesChildsWeight):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.randn(D, D))

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x).tanh() @ self.own


def _vectors(draw, k):
    return (draw.normal(k, D),)


def _pairs(draw, k):
    return draw.normal(k, D), draw.normal(k, D)


CASES = (
    Case(
        "module_called_twice",
        CalledTwice,
        _vectors,
        untied=CalledTwiceUntied,
        copies={"first": "layer", "second": "layer"},
    ),
    Case(
        "same_call_twice",
        SameCallTwice,
        _vectors,
        untied=SameCallTwiceUntied,
        copies={"first": "layer", "second": "layer"},
    ),
    Case(
        "siamese",
        Siamese,
        _pairs,
        untied=SiameseUntied,
        copies={"first": "layer", "second": "layer"},
    ),
    Case(
        "two_modules_share_weight",
        lambda: SharedWeight(True),
        _vectors,
        untied=lambda: SharedWeight(False),
        copies={"second.weight": "first.weight"},
    ),
    Case(
        "tied_autoencoder",
        TiedAutoencoder,
        _vectors,
        untied=TiedAutoencoderUntied,
        copies={"decoder": "encoder.weight"},
    ),
    Case(
        "transposed_in_another_module",
        lambda: TransposedInAnother(True),
        _vectors,
        untied=lambda: TransposedInAnother(False),
        copies={"second.weight": "first.weight"},
    ),
    Case(
        "tied_embedding",
        lambda: TiedEmbedding(True),
        lambda draw, k: (draw.ids(5, k, 4),),
        untied=lambda: TiedEmbedding(False),
        copies={"head.weight": "table.weight"},
    ),
    Case("uses_childs_weight", UsesChildsWeight, _vectors),
    Case(
        "uses_and_calls_child",
        UsesAndCallsChild,
        _vectors,
        untied=UsesAndCallsChildUntied,
        copies={"own": "child.weight"},
    ),
    Case(
        "weight_used_twice",
        lambda: Free(lambda m, x: (x @ m.w).tanh() @ m.w, **W),
        _vectors,
        untied=lambda: Free(lambda m, x: (x @ m.w1).tanh() @ m.w2, **W2),
        copies=TO_W,
    ),
)
