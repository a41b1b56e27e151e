"""What devices do in a second: the constants of the cost model, in one table."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Device:
    """What one core of a CPU, or a whole GPU, does in a second, and what one call takes."""

    products: float  # multiply-adds of large matrix products
    convolutions: float  # multiply-adds of a convolution's backward
    depthwise: float  # the same, with one channel in each group
    narrow: float  # the same, of many groups with a handful of channels in each
    bandwidth: float  # bytes
    fresh: float  # bytes written into blocks that come from the system
    scattered: float  # bytes written into per-sample weights, one call for each sample
    blocked: float  # bytes of per-sample weights laid out as groups of one convolution
    call: float  # seconds of a call
    backward_call: float  # seconds of a call of a convolution's backward


# CPU: fitted to what plan="measure" timed for the models of benchmarks/cases.py, and then to
# whole steps, on one core of an AMD EPYC with AVX-512. The GPU row is an estimate.
DEVICES = {
    "cpu": Device(50e9, 100e9, 6e9, 30e9, 16e9, 3e9, 3e9, 2e9, 4e-6, 45e-6),
    "cuda": Device(20e12, 15e12, 1e12, 3e12, 2e12, 2e12, 1e12, 0.5e12, 5e-6, 30e-6),
}


def device(kind: str) -> Device:
    """The row of the table for a kind of device; a CPU's rates count its threads."""
    row = DEVICES.get(kind, DEVICES["cuda"])
    if kind != "cpu":
        return row
    threads = torch.get_num_threads()
    rates = {
        name: value if "call" in name else value * threads for name, value in vars(row).items()
    }
    return Device(**rates)
