"""What is timed: models, their objectives, their batch sizes and the shapes of one sample."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models.alexnet import alexnet
from benchmarks.models.language_model import LanguageModel
from benchmarks.models.mobilenet import mobilenet_v2, mobilenet_v3_small
from benchmarks.models.resnet import resnet18
from benchmarks.models.small import TransformerClassifier, cifar_cnn, mlp
from benchmarks.models.squeezenet import squeezenet

Objective = Callable[[Callable, Tensor, Tensor], Tensor]  # model, x, y -> losses [k]


def classification(model: Callable, x: Tensor, y: Tensor) -> Tensor:
    """Return one loss per sample, [k]."""
    return F.cross_entropy(model(x), y, reduction="none")


def next_token(model: Callable, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean loss over the tokens of each sequence, [k]."""
    return F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(1)


@dataclass(frozen=True)
class Case:
    """A model, its objective and the batch it is trained on."""

    build: Callable[[], nn.Module]
    batch_size: int  # K, also the number of losses
    shape: tuple[int, ...]  # of one sample
    vocabulary: int = 0  # of token sequences; 0: real inputs and ten classes
    objective: Objective = classification

    def model(self, device: str = "cpu", seed: int = 0) -> nn.Module:
        """Return the model, the same one for the same seed."""
        torch.manual_seed(seed)
        return self.build().to(device)

    def batch(self, size: int, device: str = "cpu", seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return random inputs and targets of `size` samples, the same ones for the same seed."""
        torch.manual_seed(seed)
        if self.vocabulary:
            x, y = torch.randint(self.vocabulary, (2, size, *self.shape))
        else:
            x, y = torch.randn(size, *self.shape), torch.randint(10, (size,))
        return x.to(device), y.to(device)


CASES = {
    "mlp-narrow": Case(partial(mlp, 64, 128, 128, 10), 64, (64,)),
    "mlp-wide": Case(partial(mlp, 784, 256, 256, 10), 64, (1, 28, 28)),
    "cifar-cnn": Case(cifar_cnn, 64, (3, 32, 32)),
    "transformer": Case(TransformerClassifier, 8, (20, 128)),
    "alexnet-224": Case(alexnet, 8, (3, 224, 224)),
    "alexnet-64": Case(alexnet, 8, (3, 64, 64)),
    "resnet18": Case(resnet18, 16, (3, 224, 224)),
    "mobilenet-v3-small": Case(mobilenet_v3_small, 16, (3, 224, 224)),
    "squeezenet": Case(squeezenet, 4, (3, 224, 224)),
    "mobilenet-v2": Case(mobilenet_v2, 2, (3, 224, 224)),
    "language-model": Case(LanguageModel, 16, (128,), 1000, next_token),
}

# The geometric means are over these.
NINE = tuple(name for name in CASES if name not in ("alexnet-64", "language-model"))
