"""Linear layers on inputs of one to five dims, and sample axes folded into others."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case
from .free import Free

T, D = 4, 3


def _linear_on(*dims: int) -> Case:
    """Make a case with a linear layer on `[k, *dims, 3]`."""
    return Case(
        f"linear_on_{len(dims) + 2}_dims",
        lambda: nn.Sequential(nn.Linear(D, 2), nn.Tanh(), nn.Linear(2, 2)),
        lambda draw, k: (draw.normal(k, *dims, D),),
    )


def _folded(name: str, function, draw=lambda draw, k: (draw.normal(k, T, D),), **shapes) -> Case:
    return Case(name, lambda: Free(function, **(shapes or {"w": (2, D), "b": (2,)})), draw)


def _sample_major(m, x: Tensor) -> Tensor:
    k, t, d = x.shape
    return F.linear(x.reshape(k * t, d), m.w, m.b).tanh().view(k, t, 2)


def _position_major(m, x: Tensor) -> Tensor:
    k, t, d = x.shape
    folded = x.transpose(0, 1).reshape(t * k, d)
    return F.linear(folded, m.w, m.b).tanh().view(t, k, 2).transpose(0, 1)


def _flattened(m, x: Tensor) -> Tensor:
    return F.linear(x.flatten(0, 1), m.w, m.b).tanh().unflatten(0, (-1, T))


def _between(m, x: Tensor) -> Tensor:
    """Fold the samples between two other axes: (2, k, 2) of `[k, 4, 3]`."""
    k = len(x)
    folded = x.view(k, 2, 2, D).transpose(0, 1).reshape(2 * k * 2, D)
    return F.linear(folded, m.w, m.b).tanh().view(2, k, 2, 2).transpose(0, 1)


def _time_first(m, x: Tensor) -> Tensor:
    return F.linear(x.transpose(0, 1), m.w, m.b).relu().sum(0)


def _last_axis(m, x: Tensor) -> Tensor:
    """Features first, samples last."""
    return (m.w @ x[:, 0].t() + m.b[:, None]).sin().t()


def _heads(m, x: Tensor) -> Tensor:
    """Fold heads into the batch, as attention does: `[k, t, 4] -> [k * 2, t, 2]`."""
    k, t, _ = x.shape
    q, v = (
        F.linear(x, w).view(k, t, 2, 2).transpose(1, 2).reshape(k * 2, t, 2) for w in (m.q, m.v)
    )
    mixed = torch.bmm(torch.bmm(q, q.transpose(1, 2)).softmax(-1), v) @ m.inner
    return mixed.view(k, 2, t, 2).transpose(1, 2).reshape(k, t, 4)


def _heads_first(m, x: Tensor) -> Tensor:
    """Fold with the heads outside: `[2 * k, t, 2]`."""
    k, t, _ = x.shape
    v = F.linear(x, m.q).view(k, t, 2, 2).permute(2, 0, 1, 3).reshape(2 * k, t, 2)
    return F.linear(v.tanh(), m.inner).view(2, k, t, 2).permute(1, 2, 0, 3).reshape(k, t, 4)


def _windows(m, x: Tensor) -> Tensor:
    """Cut `[k, 4, 4, c]` into windows `[k * 4, 4, c]`, mix inside each, and put them back."""
    k, c = len(x), x.shape[-1]
    windows = x.view(k, 2, 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
    windows = (windows + m.position) @ m.w.t() + m.b
    scores = (windows @ windows.transpose(1, 2) + m.table).softmax(-1)
    # the mask differs by window: unfold to [k, 4, ...] and fold again
    scores = (scores.view(k, 4, 4, 4) * m.by_window[:, None, None]).view(-1, 4, 4)
    mixed = (scores @ windows).view(k, 2, 2, 2, 2, 2)
    return mixed.permute(0, 1, 3, 2, 4, 5).reshape(k, 4, 4, 2)


def _shifted(m, x: Tensor) -> Tensor:
    rolled = torch.roll(x, shifts=(-1, 1), dims=(1, 2))
    return torch.roll(rolled @ m.w.t() + m.b, shifts=(1, -1), dims=(1, 2)).flip(1).tanh()


def _class_token(m, x: Tensor) -> Tensor:
    tokens = torch.cat([m.cls.expand(len(x), -1, -1), x], dim=1) + m.position
    return F.linear(tokens, m.w)[:, 0]


def _class_token_repeated(m, x: Tensor) -> Tensor:
    return F.linear(torch.cat([m.cls.repeat(x.shape[0], 1, 1), x], 1), m.w).amax(1)


def _unbound(m, x: Tensor) -> Tensor:
    """One linear layer on each position would be reuse; here all but one position get constants."""
    first, *rest = x.unbind(1)
    return torch.stack([F.linear(first, m.w, m.b), *(part[:, :2] for part in rest)], 1).prod(1)


def _images(draw, k):
    return (draw.normal(k, 4, 4, D),)


def _wide(draw, k):
    return (draw.normal(k, T, 4),)


CASES = (
    _linear_on(),
    _linear_on(4),
    _linear_on(2, 4),
    _linear_on(2, 1, 4),
    Case(
        "sums_in_one_dim",
        lambda: Free(lambda m, x: x * m.w, w=()),
        lambda draw, k: (draw.normal(k),),
    ),
    Case(
        "all_dims_are_two",
        lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)),
        lambda draw, k: (draw.normal(k, 2, 2),),
    ),
    Case(
        "all_dims_are_three",
        lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm([3, 3]), nn.Linear(3, 3)),
        lambda draw, k: (draw.normal(k, 3, 3),),
    ),
    _folded("folded_sample_major", _sample_major),
    _folded("folded_position_major", _position_major),
    _folded("folded_by_flatten", _flattened),
    _folded("folded_between_other_axes", _between),
    _folded("time_first", _time_first),
    _folded("samples_last", _last_axis),
    _folded("heads_folded", _heads, _wide, q=(4, 4), v=(4, 4), inner=(2, 2)),
    _folded("heads_folded_outside", _heads_first, _wide, q=(4, 4), inner=(2, 2)),
    _folded(
        "windows",
        _windows,
        _images,
        w=(2, D),
        b=(2,),
        position=(4, D),
        table=(4, 4),
        by_window=(4,),
    ),
    _folded("rolled_and_flipped", _shifted, _images),
    _folded("class_token_expanded", _class_token, cls=(1, 1, D), position=(T + 1, D), w=(2, D)),
    _folded("class_token_repeated", _class_token_repeated, cls=(1, 1, D), w=(2, D)),
    _folded("unbound_positions", _unbound),
)
