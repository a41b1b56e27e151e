"""One torch thread, so that timings and rounding do not depend on the machine's load."""

import pytest
import torch

torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    """Let the one convolution that torch advises against into the zoo; hide nothing else."""
    config.addinivalue_line("filterwarnings", "ignore:Using padding='same' with even kernel")
