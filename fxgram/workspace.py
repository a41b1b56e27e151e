"""Memory that PyTorch's own kernels take for themselves while they run."""

from typing import Any

import torch

aten = torch.ops.aten


def workspace(op: Any, arguments: tuple) -> int:
    """Bytes of a kernel besides its arguments and results.

    Convolutions on CPU lay their weights out in blocks of channels, and a backward does so once for
    each gradient that it computes.
    """
    if op is aten.convolution.default:
        return arguments[1].untyped_storage().nbytes()
    if op is aten.convolution_backward.default:
        return sum(arguments[-1][:2]) * arguments[2].untyped_storage().nbytes()
    if op is aten.native_batch_norm_backward.default:
        return arguments[0].nbytes  # allocates the input's gradient twice, for a moment
    return 0
