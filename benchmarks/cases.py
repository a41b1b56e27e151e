"""What is timed: models, their batch sizes and the shapes of one sample."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models.alexnet import alexnet
from benchmarks.models.mobilenet import mobilenet_v2, mobilenet_v3_small
from benchmarks.models.resnet import resnet18
from benchmarks.models.small import TransformerClassifier, cifar_cnn, mlp
from benchmarks.models.squeezenet import squeezenet


@dataclass(frozen=True)
class Case:
    """A classifier and the batch it is trained on."""

    build: Callable[[], nn.Module]
    batch_size: int  # K, also the number of losses
    shape: tuple[int, ...]  # of one sample

    def make(self, device: str, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
        """Return the model and a random batch, the same ones for the same seed."""
        torch.manual_seed(seed)
        model = self.build().to(device)
        x = torch.randn(self.batch_size, *self.shape)
        y = torch.randint(10, (self.batch_size,))
        return model, x.to(device), y.to(device)


CASES = {
    "mlp-narrow": Case(partial(mlp, 64, 64, 64, 10), 64, (64,)),
    "mlp-wide": Case(partial(mlp, 784, 256, 256, 10), 64, (1, 28, 28)),
    "cifar-cnn": Case(cifar_cnn, 64, (3, 32, 32)),
    "transformer": Case(TransformerClassifier, 8, (20, 128)),
    "alexnet-64": Case(alexnet, 8, (3, 64, 64)),
    "alexnet-224": Case(alexnet, 8, (3, 224, 224)),
    "resnet18": Case(resnet18, 16, (3, 224, 224)),
    "mobilenet-v3-small": Case(mobilenet_v3_small, 16, (3, 224, 224)),
    "squeezenet": Case(squeezenet, 4, (3, 224, 224)),
    "mobilenet-v2": Case(mobilenet_v2, 2, (3, 224, 224)),
}


def objective(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return one loss per sample, [k]."""
    return F.cross_entropy(model(x), y, reduction="none")
