"""What the figures depend on: the machine and the versions."""

import importlib.metadata
import os
import platform
from pathlib import Path

import torch

PACKAGES = ("fxgram", "torch", "torchjd", "opacus")


def describe(device: str) -> dict[str, str | int]:
    """Return the processor, the threads and the versions."""
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "processor": _gpu(device) if device.startswith("cuda") else _cpu(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        **versions,
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _gpu(device: str) -> str:
    return torch.cuda.get_device_name(device)


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
