"""Seconds that were measured, on disk: one readable JSON file for each device and version."""

import json
import logging
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import platformdirs
import torch

try:
    import fcntl
except ImportError:  # not a POSIX system: files are still replaced as a whole
    fcntl = None

_FORMAT = 1
_log = logging.getLogger("fxgram")
Seconds = dict[str, dict[str, float]]  # of a use: what its choices take


def cache_file(device: torch.device) -> Path:
    """The file for a device, the number of threads and the version of torch.

    It lies in the user's cache folder, or in the one that FXGRAM_CACHE names.
    """
    folder = os.environ.get("FXGRAM_CACHE") or platformdirs.user_cache_dir(
        "fxgram", appauthor=False
    )
    words = f"{described(device)} torch {torch.__version__}"
    name = re.sub(r"[^\w.+]+", "-", words).strip("-")
    return Path(folder).expanduser() / f"{name}.json"


def described(device: torch.device) -> str:
    """The processor, and how many threads of it are in use."""
    threads = torch.get_num_threads()
    used = f", {threads} thread{'s' * (threads > 1)}" if device.type == "cpu" else ""
    return device_name(device) + used


def device_name(device: torch.device) -> str:
    """What the maker calls the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    if device.type == "cpu" and info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return f"{device.type} {platform.processor() or platform.machine()}"


def read(path: Path) -> Seconds:
    """What the file holds; nothing, and a warning, if it cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        _log.warning("ignored the measured plans in %s: %s", path, error)
        return {}
    try:
        found = json.loads(text)
        if found["format"] != _FORMAT:
            raise ValueError(f"written in format {found['format']}, this is {_FORMAT}")
        return {
            str(use): {str(name): float(value) for name, value in choices.items()}
            for use, choices in found["seconds"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("ignored the measured plans in %s: %s", path, error or type(error).__name__)
        return {}


def add(path: Path, seconds: Mapping[str, Mapping[str, float]]) -> Seconds:
    """Add to the file, and return all of it; what is there already stays as it is.

    The file is replaced as a whole, by one process after the other.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            found = read(path)
            for use, choices in seconds.items():
                found[use] = {**choices, **found.get(use, {})}
            _replace(path, {"format": _FORMAT, "seconds": found})
    except OSError as error:
        _log.warning("cannot keep measured plans in %s: %s", path, error)
        return {use: dict(choices) for use, choices in seconds.items()}
    return found


def _replace(path: Path, content: dict) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, sort_keys=True)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait for other processes that add to the file; the lock goes when its file is closed."""
    with open(path.with_suffix(".lock"), "a") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
