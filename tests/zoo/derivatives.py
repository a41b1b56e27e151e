"""Objectives that differentiate inside: physics-informed losses, penalties, forces, inner steps."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from .case import Case

D = 2
SIZES = (1, 3, 8)


class Field(nn.Module):
    """A scalar field `u(t, x)`; a frozen scale and a constant buffer on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(D, 4), nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.rand(4), requires_grad=False)
        self.register_buffer("shift", torch.randn(D))

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.first(x - self.shift) * self.scale).tanh())[..., 0]


class Energy(nn.Module):
    """Energies `[K]` of positions `[K, n, 3]` and kinds `[K, n]`."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.norm = nn.Embedding(3, 4), nn.LayerNorm(4)
        self.pair, self.last = nn.Linear(1, 4), nn.Linear(4, 1)

    def forward(self, positions: Tensor, kinds: Tensor) -> Tensor:
        between = positions[:, :, None] - positions[:, None]
        distances = (between.square().sum(-1, keepdim=True) + 0.1).sqrt()
        pairs = F.silu(self.pair(distances)) * self.kinds(kinds)[:, :, None]
        return self.last(self.norm(pairs.sum(2))).sum((1, 2))


class Critic(nn.Module):
    """Scores of images, with a dropout layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)
        self.drop, self.last = nn.Dropout(0.4), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(F.softplus(self.norm(self.conv(x)))).flatten(1))[:, 0]


class Counting(Field):
    """Writes to a buffer in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.add_(x.sum())
        return super().forward(x)


def _slope(u: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(u.sum(), x, create_graph=True)[0]


def heat_equation(model: nn.Module, x: Tensor) -> Tensor:
    x.requires_grad_()
    first = _slope(model(x), x)
    return (first[:, 0] - _slope(first[:, 1], x)[:, 1]).square()


def residual_and_data(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    u = model(x)
    return torch.stack([_slope(u, x).square().sum(1), (u - y).square()], 1)


def slopes_of_a_pair(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Both inputs in one batch, behind each other."""
    both = torch.cat([x, y]).requires_grad_()
    one, other = _slope(model(both), both).chunk(2)
    return (one * other).sum(1)


def gradient_penalty(model: nn.Module, real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
    between = torch.lerp(real, fake, mix[:, None, None, None]).requires_grad_()
    (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
    penalty = (slope.flatten(1).norm(dim=1) - 1).square()
    return model(fake) - model(real) + 10 * penalty


def force_matching(model: nn.Module, positions: Tensor, kinds: Tensor, forces: Tensor) -> Tensor:
    positions = positions.clone().requires_grad_()
    energy = model(positions, kinds)
    (slope,) = torch.autograd.grad(energy, positions, torch.ones_like(energy), create_graph=True)
    return (slope + forces).square().sum((1, 2)) + 0.1 * energy.sin()


def vmapped_gradient(model: nn.Module, x: Tensor) -> Tensor:
    return vmap(grad(model))(x).square().sum(1)


def vmapped_laplacian(model: nn.Module, x: Tensor) -> Tensor:
    return vmap(hessian(model))(x).diagonal(dim1=1, dim2=2).sum(1).sin()


def directional(model: nn.Module, x: Tensor, v: Tensor) -> Tensor:
    u, slope = jvp(model, (x,), (v,))
    return (u - slope).square()


def pulled_back(model: nn.Module, x: Tensor) -> Tensor:
    u, back = vjp(model, x)
    return back(u)[0].square().sum(1)


def jacobian_of_the_batch(model: nn.Module, x: Tensor) -> Tensor:
    return torch.einsum("kki->ki", jacrev(model)(x)).square().sum(1)


def forward_jacobian(model: nn.Module, x: Tensor) -> Tensor:
    return vmap(jacfwd(model))(x).square().sum(1)


def functional(model: nn.Module, x: Tensor) -> Tensor:
    params = dict(model.named_parameters())

    def field(params: dict, x: Tensor) -> Tensor:
        return functional_call(model, params, (x,))

    return vmap(grad(field, argnums=1), (None, 0))(params, x).prod(1) + field(params, x)


def vmapped_model(model: nn.Module, x: Tensor) -> Tensor:
    return vmap(model)(x).square()


def constant_slope(model: nn.Module, x: Tensor) -> Tensor:
    """The inner derivative is a number: no `create_graph`."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x)
    return slope.sum(1) * model(x)


def slope_at_a_latent(model: nn.Module, x: Tensor) -> Tensor:
    """What is differentiated for is a leaf made of a value that depends on parameters."""
    latent = model.first(x).detach().requires_grad_()
    (slope,) = torch.autograd.grad(model.last(latent.tanh()).sum(), latent, create_graph=True)
    return slope.square().sum(1) + model(x)


def _inner_step(model: nn.Module, x: Tensor, y: Tensor, first_order: bool) -> dict[str, Tensor]:
    params = {n: p for n, p in model.named_parameters() if p.requires_grad}
    loss = (model(x) - y).square().mean()
    slopes = torch.autograd.grad(loss, list(params.values()), create_graph=not first_order)
    return {n: p - 0.5 * s for (n, p), s in zip(params.items(), slopes, strict=True)}


def inner_steps(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Losses after one step of gradient descent, and after its first-order variant."""
    fast = [_inner_step(model, x, y, first_order) for first_order in (False, True)]
    after = [functional_call(model, params, (x,)) for params in fast]
    return torch.stack([(u - y).square().mean() for u in after])


def _points(draw, k):
    return (draw.normal(k, D),)


def _pairs(draw, k):
    return draw.normal(k, D), draw.normal(k)


def _images(draw, k):
    return draw.normal(k, 1, 4, 4), draw.normal(k, 1, 4, 4), draw.normal(k).sigmoid()


def _molecules(draw, k):
    return draw.normal(k, 3, 3), draw.ids(3, k, 3), draw.normal(k, 3, 3)


def _on_field(objective, draw=_points, **options) -> Case:
    return Case(objective.__name__, Field, draw, objective, sizes=SIZES, **options)


CASES = (
    _on_field(heat_equation),
    _on_field(residual_and_data, _pairs),
    _on_field(vmapped_gradient),
    _on_field(vmapped_laplacian),
    _on_field(directional, lambda draw, k: (draw.normal(k, D), draw.normal(k, D))),
    _on_field(slopes_of_a_pair, lambda draw, k: (draw.normal(k, D), draw.normal(k, D))),
    _on_field(pulled_back),
    _on_field(jacobian_of_the_batch),
    _on_field(forward_jacobian),
    _on_field(functional),
    _on_field(vmapped_model),
    _on_field(constant_slope),
    _on_field(slope_at_a_latent),
    _on_field(inner_steps, _pairs, batch_dim=None),
    Case("buffer_in_a_derivative", Counting, _points, heat_equation, sizes=SIZES),
    Case("force_matching", Energy, _molecules, force_matching, sizes=SIZES),
    Case("gradient_penalty", Critic, _images, gradient_penalty, sizes=SIZES, random=True),
)
