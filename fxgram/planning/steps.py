"""The steps of each way to contract a use, in the sizes of its labels: formulas, no numbers.

A step is a roofline of multiply-adds and bytes with a number of calls. `K` is the size of label
`k`, the samples; `S` that of `s`, the positions that are summed; the others are dims of the
parameter. `parts` is the number of blocks of rows, or of slices of the parameter.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import opt_einsum
import sympy
import torch

from passes import Choice, Factors
from passes.kernels import windows

aten = torch.ops.aten
_VIEWS = (aten.reshape.default, aten.permute.default, aten.squeeze.dims)
PARTS = sympy.Symbol("parts", positive=True, integer=True)
_NARROW = 24  # at most so many channels make a kernel for many groups slow
ZERO, ONE = sympy.Integer(0), sympy.Integer(1)
Path = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Product:
    """What the cost of a use depends on besides its sizes."""

    equation: str  # labels of the factored Jacobian, "kso,ksi->oi"
    one_hot: bool = False  # whether the first operand holds integers
    element: int = 4  # bytes of a number
    made: str = ""  # labels of an operand that is laid out first (windows of a convolution)
    kernels: tuple[str, ...] = ()  # other ways to the per-sample gradients
    channels: int = 0  # of a convolution's input, in each of its groups

    @staticmethod
    def of(factors: Factors) -> "Product":
        """Describe the factors of a use."""
        kernels = [kernel.jacobian.meta["val"].shape for kernel in factors.kernels]
        return Product(
            factors.equation,
            factors.one_hot is not None,
            factors.operands[-1].meta["val"].element_size(),
            made(factors),
            tuple(kernel.name for kernel in factors.kernels),
            int(kernels[0][2]) if kernels else 0,  # of [k, o, c, *taps]
        )

    @property
    def terms(self) -> list[str]:
        """Labels of each operand."""
        return self.equation.split("->")[0].split(",")

    @property
    def result(self) -> str:
        """Labels of the parameter's dims."""
        return self.equation.split("->")[1]

    @property
    def labels(self) -> str:
        """Every label once."""
        return "".join(dict.fromkeys("".join(self.terms)))

    @property
    def shared(self) -> str:
        """Labels of the parameter that several operands have: groups."""
        return "".join(c for c in self.result if sum(c in term for term in self.terms) > 1)

    @property
    def unit(self) -> str:
        """Which rate of the device the operator's own backward runs at."""
        if not self.kernels:
            return "products"
        return "depthwise" if self.shared else "convolutions"

    def own(self, term: str) -> str:
        """Labels of an operand besides samples, positions and groups: "i" of "ksi"."""
        return "".join(c for c in term if c not in "ks" + self.shared)


@dataclass(frozen=True)
class Step:
    """Part of a cost, in sizes of labels."""

    name: str
    multiply_adds: sympy.Expr
    bytes: sympy.Expr
    calls: sympy.Expr = ONE
    unit: str = "products"  # which rate of the device its multiply-adds run at
    stream: str = "bandwidth"  # which rate its bytes run at


@functools.cache
def symbol(label: str) -> sympy.Symbol:
    """The size of a label."""
    return sympy.Symbol(label.upper(), positive=True, integer=True)


def size(labels: str) -> sympy.Expr:
    """Numbers in a tensor with these labels."""
    return sympy.Mul(*(symbol(label) for label in labels))


@functools.cache
def steps(product: Product, way: Choice, unit: str = "", path: Path = ()) -> tuple[Step, ...]:
    """The steps of one way to contract a use and to get its weighted gradient.

    `way.parts` does not count: `PARTS` stands for it. `unit`: which rate the per-sample gradients
    by a kernel run at, if not that of the operator's backward; `path`: the order in which more
    than two operands are multiplied.
    """
    jacobian = product.element * size("k" + product.result)
    if way.contraction == "bias":
        return ()
    found = []
    if product.made and way.kernel == "factors":
        found.append(Step("columns", ZERO, 3 * product.element * size(product.made)))
    if way.contraction == "pairs":
        found += _pairs(product)
    else:
        found += _per_sample(product, way.kernel, unit or product.unit, path)
        squared = size("kk" + product.result)
        found.append(Step("Gramian", squared, jacobian, PARTS))
    if way.keep:
        found.append(Step("weighted gradient", size("k" + product.result), jacobian))
    else:
        weighted = product.terms[-1 if product.one_hot else 0]
        moved = 2 * product.element * size(weighted) + _operands(product)
        multiplied = ZERO if product.one_hot else size(product.labels)
        found.append(Step("weighted gradient", multiplied, moved, sympy.Integer(2), product.unit))
    return tuple(found)


def _operands(product: Product) -> sympy.Expr:
    terms = product.terms[1:] if product.one_hot else product.terms
    return sympy.Add(*(product.element * size(term) for term in terms))


def _pairs(product: Product) -> list[Step]:
    """`(A Aᵀ) ∘ (B Bᵀ)`: each block of rows meets itself and those behind it."""
    rows = size("kk" + ("ss" if "s" in product.labels else "") + product.shared)
    half = (PARTS + 1) / (2 * PARTS)
    terms = product.terms[1:] if product.one_hot else product.terms
    own = sympy.Add(*(size(product.own(term)) for term in terms))
    moved = 3 * product.element * len(product.terms) * half * rows
    return [
        Step("rows", ZERO, 2 * _operands(product)),
        Step("pairs", half * rows * own, moved, 4 * PARTS),
    ]


def _per_sample(product: Product, kernel: str, unit: str, path: Path) -> list[Step]:
    """Per-sample gradients `[k, *parameter]`, by a kernel or from the factors."""
    jacobian = product.element * size("k" + product.result)
    name, every = "per-sample gradients", size(product.labels)
    if kernel == "calls":
        return [Step(name, every, jacobian, symbol("k"), unit, "scattered")]
    if kernel == "groups":
        return [Step(name, every, jacobian, sympy.Integer(2), unit, "blocked")]
    if product.one_hot:
        return [Step(name, ZERO, _operands(product) + 2 * jacobian, 2 * PARTS)]
    products, written = every, ZERO
    if path:
        products = ZERO
        for met, left in _contractions(product, path):
            products += size(met)
            written += 2 * product.element * size(left)
        written -= 2 * jacobian  # the last one is counted below
    return [Step(name, products, _operands(product) + written + 2 * jacobian, 2 * PARTS)]


def _contractions(product: Product, path: Path) -> list[tuple[str, str]]:
    """Labels that meet in each product of a path, and those that are left of it."""
    terms, found = product.terms, []
    for places in path:
        taken = [terms.pop(at) for at in sorted(places, reverse=True)]
        met = "".join(dict.fromkeys("".join(reversed(taken))))
        wanted = "k" + product.result + "".join(terms)
        left = "".join(label for label in met if label in wanted)
        found.append((met, left))
        terms.append(left)
    return found


def path_of(product: Product, sizes: Mapping[str, int]) -> Path:
    """The order of opt_einsum for more than two operands; `torch.einsum` takes the same."""
    if len(product.terms) < 3 or len(set(product.terms)) == 1:  # equal ones: a pointwise product
        return ()
    shapes = tuple(tuple(sizes[label] for label in term) for term in product.terms)
    return _path(f"{','.join(product.terms)}->k{product.result}", shapes)


@functools.lru_cache(maxsize=1024)
def _path(equation: str, shapes: tuple[tuple[int, ...], ...]) -> Path:
    found, _ = opt_einsum.contract_path(equation, *shapes, shapes=True)
    return tuple(tuple(places) for places in found)


def unit_of(product: Product, kernel: str, sizes: Mapping[str, int]) -> str:
    """Which rate of the device the per-sample gradients by a kernel run at."""
    outputs = [sizes[c] for c in product.result if c not in product.shared]
    channels = min([product.channels, *outputs])
    if kernel == "groups" and 1 < channels <= _NARROW:
        return "narrow"
    return product.unit


def made(factors: Factors) -> str:
    """Labels of an operand that has to be laid out: the windows of a convolution; else ""."""
    terms = factors.equation.split("->")[0].split(",")
    for term, operand in zip(terms, factors.operands):
        node = operand
        while node.target in _VIEWS:
            node = node.args[0]
        if node.target is windows:
            return term
    return ""
