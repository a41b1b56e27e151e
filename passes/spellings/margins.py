"""Losses that PyTorch 2.13 computes wrongly when it traces their backward."""

import torch
from torch import Tensor

aten = torch.ops.aten


def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """`sum relu(1 - x[label] + x[other]) / d`, over the labels in front of the first -1.

    Its decomposition counts label 0 once more for every entry behind that -1.
    """
    numbers = torch.arange(x.shape[-1], device=x.device)
    listed = (target == -1).cumsum(-1) == 0
    labels = torch.where(listed, target, 0)
    is_label = ((labels.unsqueeze(-1) == numbers) & listed.unsqueeze(-1)).any(-2)
    margins = (1 - x.gather(-1, labels).unsqueeze(-1) + x.unsqueeze(-2)).relu()
    counted = listed.unsqueeze(-1) & ~is_label.unsqueeze(-2)
    losses = (margins * counted).sum((-2, -1)) / x.shape[-1]
    return (losses, losses.mean(), losses.sum())[reduction]


SPELLINGS = {aten.multilabel_margin_loss.default: multilabel_margin_loss}
