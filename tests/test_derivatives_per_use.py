"""The default mode where the objective differentiates inside: a use for each kernel that reads one.

The twins write the derivatives of `u = tanh(x w) v` by hand, with a copy of a parameter for each
use: the forward reads w and v, its derivative reads both again, and so does the derivative of that.
"""

import pytest
import torch
from oracle import (
    assert_close_relative,
    assert_gradients_close,
    assert_gramian_close,
    evaluate,
    gradient_of,
    gramian,
    trainable,
)
from torch.func import grad, jvp, vmap
from zoo.free import Free

import fxgram

# PyTorch scripts its formulas for forward-mode derivatives when they are first needed.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")

D, H = 2, 4


def network(m, x):
    return (x @ m.w).tanh() @ m.v


def slope(m, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(network(m, x).sum(), x, create_graph=True)[0].square().sum(1)


def slope_by_hand(m, x):
    h = (x @ m.w0).tanh()
    return (((1 - h**2) * m.v0) @ m.w1.t()).square().sum(1)


def slope_and_value(m, x):
    x = x.detach().requires_grad_()
    u = network(m, x)
    (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    return first.square().sum(1) - u.sin()


def slope_and_value_by_hand(m, x):
    h = (x @ m.w0).tanh()
    first = ((1 - h**2) * m.v0) @ m.w1.t()
    return first.square().sum(1) - (h @ m.v1).sin()


def vmapped(m, x):
    return vmap(grad(lambda x: network(m, x)))(x).square().sum(1)


def directional(m, x):
    u, along = jvp(lambda x: network(m, x), (x,), (x.cos(),))
    return (along - u).square()


def directional_by_hand(m, x):
    h = (x @ m.w0).tanh()
    along = ((1 - h**2) * (x.cos() @ m.w1)) @ m.v1
    return (along - h @ m.v0).square()


def curvature(m, x):
    """The second derivative along the first input."""
    x = x.detach().requires_grad_()
    (first,) = torch.autograd.grad(network(m, x).sum(), x, create_graph=True)
    return torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)[0][:, 0].square()


def curvature_by_hand(m, x):
    h = (x @ m.w0).tanh()
    through_h = -2 * h * m.w1[0] * m.v0
    return ((through_h * (1 - h**2)) @ m.w2[0]).square()


# the objective, its twin, and how often it reads w and v
TWINS = {
    "slope": (slope, slope_by_hand, 2, 1),
    "slope_and_value": (slope_and_value, slope_and_value_by_hand, 2, 2),
    "vmapped": (vmapped, slope_by_hand, 2, 1),
    "directional": (directional, directional_by_hand, 2, 2),
    "curvature": (curvature, curvature_by_hand, 3, 1),
}


@pytest.mark.parametrize("name", TWINS)
def test_equals_the_untied_twin(name):
    objective, by_hand, of_w, of_v = TWINS[name]
    torch.manual_seed(0)
    model = Free(network, w=(D, H), v=(H,)).double()
    shapes = {f"w{n}": (D, H) for n in range(of_w)} | {f"v{n}": (H,) for n in range(of_v)}
    twin = Free(by_hand, **shapes).double()
    for copy, parameter in twin.named_parameters():
        parameter.data.copy_(model.get_parameter(copy[0]))
    step = fxgram.compile(model, objective)
    for k in (3, 1, 8):
        x = torch.randn(k, D, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
        losses, actual = step(x)
        expected = evaluate(model, objective, (x,))
        assert_close_relative(losses.detach(), expected.detach(), 1e-9, f"K={k} losses")
        assert_close_relative(expected.detach(), by_hand(twin, x).detach(), 1e-9, "twin")
        assert_gramian_close(actual, gramian(twin, by_hand, (x,)), 1e-9, f"K={k}")
        weights = torch.linspace(-1, 2, k, dtype=torch.float64)
        losses.backward(weights)
        found = {n: p.grad for n, p in trainable(model).items()}
        assert_gradients_close(found, gradient_of(expected, trainable(model), weights), 1e-9)
        model.zero_grad(set_to_none=True)
