"""Memory that PyTorch's own kernels take for themselves while they run."""

from typing import Any

import torch

aten = torch.ops.aten


def workspace(op: Any, arguments: tuple, result: Any) -> int:
    """Bytes of a kernel besides its arguments and results.

    Convolutions on CPU lay images and weights out in blocks of channels.
    """
    if op is aten.convolution.default:
        return result.nbytes + _whole(arguments[1])
    if op is aten.convolution_backward.default:
        gradient, x, weight, _, stride = arguments[:5]
        of_x, of_weight, _ = arguments[-1]
        images = x.nbytes * (2 if max(stride) > 1 else 1) if of_x else 0
        if of_weight:
            images = max(images, gradient.nbytes + x.nbytes)
        return images + _whole(weight)
    if op is aten.native_batch_norm_backward.default:
        return arguments[0].nbytes  # allocates the input's gradient twice, for a moment
    return 0


def _whole(value: torch.Tensor) -> int:
    return value.untyped_storage().nbytes()
