"""One torch thread, so that timings and rounding do not depend on the machine's load."""

import pytest
import torch

torch.set_num_threads(1)

_OF_EAGER = ("Using padding='same' with even kernel", "LSTM with projections is not supported")


def pytest_configure(config: pytest.Config) -> None:
    """Let what torch itself warns of, for models of the zoo, pass; hide nothing else."""
    for message in _OF_EAGER:
        config.addinivalue_line("filterwarnings", f"ignore:{message}")
