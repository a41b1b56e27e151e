"""Run one contender in a process of its own, so that what it takes is nobody else's.

Each child first imports fxgram and compiles a tiny model, whichever contender it is for: the
baseline is then alike.
"""

import logging
import multiprocessing
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar

import torch
from torch import Tensor, nn

import fxgram
from benchmarks.cases import Case, classification
from benchmarks.checking import Reference
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.contract import Run
from benchmarks.failures import one_line
from benchmarks.models.small import mlp

T = TypeVar("T")
SMALL = 2  # samples of the first step, which compiles: sizes are symbolic


@dataclass(frozen=True)
class Trial:
    """One contender on one batch size."""

    case: Case
    contender: str
    size: int  # K, of the batch
    threads: int  # of torch
    limit: int | None = None  # bytes of private memory


def in_child(function: Callable[[Trial], T], trial: Trial) -> T | str:
    """Return `function(trial)` as a new process finds it, or in one line why there is none."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, trial))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:  # killed, by the system or by a library that can't allocate
        process.join()
        return f"failed: exit code {process.exitcode}"
    finally:
        process.join()


def _answer(sender: Connection, function: Callable, trial: Trial) -> None:
    if trial.limit is not None:
        # On private writable memory: a limit on addresses would count the libraries' code.
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (trial.limit, most))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries print what they can't allocate
    torch.set_num_threads(trial.threads)
    try:
        sender.send(function(trial))
    except Exception as error:
        sender.send(one_line(error))


def prepared(trial: Trial) -> tuple[nn.Module, Run]:
    """Return the model, its `.grad` allocated, and the contender after a first small step."""
    logging.getLogger("fxgram").setLevel(logging.ERROR)  # `verify` has let it warn
    tiny = fxgram.compile(mlp(4, 4, 2), classification, check=False)
    tiny(torch.randn(3, 4), torch.tensor([0, 1, 1]))[0].sum().backward()
    model = trial.case.model()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    run = CONTENDERS[trial.contender](model, trial.case.objective)
    run(*arguments(trial.case, SMALL))
    return model, run


def arguments(case: Case, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a batch of `size` samples and the weights of its losses."""
    return *case.batch(size), torch.rand(size)


def verify(trial: Trial) -> float | None:
    """Return the error of the contender's answer on a small batch; None: it computes none."""
    x, y, weights = arguments(trial.case, SMALL)
    model = trial.case.model()
    reference = Reference.of(model, trial.case.objective, (x, y))
    twin = trial.case.model()
    answer, weights = CONTENDERS[trial.contender](twin, trial.case.objective)(x, y, weights)
    return None if answer is None else reference.check(answer, weights, twin)
