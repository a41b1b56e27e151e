"""One parameter, or one view of it, that enters several ops. How it is spelled must not matter."""

import torch
import torch.nn.functional as F

from .case import Case
from .free import Free

D = 3


def _pairs(draw, k):
    return draw.normal(k, D), draw.normal(k, D)


def _twice(name, tied, untied, shape, draw=_pairs, more=None):
    """Make a case of `tied(m, ...)` with one parameter `w`, and `untied` with two copies."""
    more = more or {}
    return Case(
        name,
        lambda: Free(tied, w=shape, **more),
        draw,
        untied=lambda: Free(untied, w1=shape, w2=shape, **more),
        copies={"w1": "w", "w2": "w"},
    )


def _transposed_once(m, x, y):
    wt = m.w.t()
    return (x @ wt).tanh(), y @ wt


def _transposed_twice(m, x, y):
    return (x @ m.w.t()).tanh(), y @ m.w.t()


def _transposed_untied(m, x, y):
    return (x @ m.w1.t()).tanh(), y @ m.w2.t()


def _expanded(m, x, y):
    w = m.w.expand(len(x), -1)
    return x * w, (y + w).sin()


def _repeated(m, x, y):
    w = m.w.repeat(len(x), 1)
    return x * w, (y + w).sin()


def _broadcast(m, x, y):
    return x * m.w, (y + m.w).sin()


def _broadcast_untied(m, x, y):
    return x * m.w1, (y + m.w2).sin()


def _normed(m, x, y):
    w = m.w / m.w.norm()
    return (x @ w) * (y @ w)


def _normed_untied(m, x, y):
    return (x @ (m.w1 / m.w1.norm())) * (y @ (m.w2 / m.w2.norm()))


def _halves(m, x, y):
    upper, lower = m.w.chunk(2)
    return (x @ upper.t()).sin() @ lower


def _halves_untied(m, x, y):
    return (x @ m.w1.chunk(2)[0].t()).sin() @ m.w2.chunk(2)[1]


def _overlapping(m, x, y):
    return F.linear(x, m.w[:3]) * F.linear(y, m.w[1:])


def _overlapping_untied(m, x, y):
    return F.linear(x, m.w1[:3]) * F.linear(y, m.w2[1:])


def _in_place_on_view(m, x, y):
    w = m.w.clone()
    w[0] = w[1] * 2
    return x @ w, (y @ w).cos()


def _in_place_on_view_untied(m, x, y):
    w1, w2 = m.w1.clone(), m.w2.clone()
    w1[0] = w1[1] * 2
    w2[0] = w2[1] * 2
    return x @ w1, (y @ w2).cos()


CASES = (
    _twice("transposed_once_used_twice", _transposed_once, _transposed_untied, (4, D)),
    _twice("transposed_twice_used_twice", _transposed_twice, _transposed_untied, (4, D)),
    _twice("expanded_used_twice", _expanded, _broadcast_untied, (D,)),
    _twice("repeated_used_twice", _repeated, _broadcast_untied, (D,)),
    _twice("broadcast_used_twice", _broadcast, _broadcast_untied, (D,)),
    _twice("normalised_used_twice", _normed, _normed_untied, (D, 2)),
    _twice("chunks_used_apart", _halves, _halves_untied, (4, D)),
    _twice("overlapping_slices", _overlapping, _overlapping_untied, (4, D)),
    _twice("edited_copy_used_twice", _in_place_on_view, _in_place_on_view_untied, (D, D)),
    _twice(
        "sum_of_two_matmuls",
        lambda m, x, y: (x @ m.w + y @ m.w).sin(),
        lambda m, x, y: (x @ m.w1 + y @ m.w2).sin(),
        (D, 2),
    ),
    _twice("scalar_used_twice", lambda m, x, y: m.w * x + m.w, lambda m, x, y: m.w1 * x + m.w2, ()),
    _twice(
        "bias_of_two_layers",
        lambda m, x, y: F.linear(F.linear(x, m.a, m.w).tanh(), m.b, m.w),
        lambda m, x, y: F.linear(F.linear(x, m.a, m.w1).tanh(), m.b, m.w2),
        (D,),
        more={"a": (D, D), "b": (D, D)},
    ),
    _twice(
        "matrix_as_bias_and_weight",
        lambda m, x, y: torch.baddbmm(
            m.w, x.unsqueeze(2) * y.unsqueeze(1), m.w.expand(len(x), -1, -1)
        ),
        lambda m, x, y: torch.baddbmm(
            m.w1, x.unsqueeze(2) * y.unsqueeze(1), m.w2.expand(len(x), -1, -1)
        ),
        (D, D),
    ),
)
