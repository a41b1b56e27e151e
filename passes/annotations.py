"""The one place that writes notes on nodes and graphs, all of them under `KEY` of `meta`."""

from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from passes.targets import target_name

KEY = "fxgram"


@dataclass(frozen=True)
class SampleAxis:
    """Where the samples sit in a value: dimension `dim` of size `outer * K * inner`.

    `x.view(K * 20, d)` has inner 20 (sample-major), `x.mT.reshape(20 * K, d)` outer 20.
    `dim` None: there is one sample and the whole value belongs to it.
    """

    dim: int | None
    outer: int = 1
    inner: int = 1


@dataclass(frozen=True)
class Note:
    """What the passes found out about one node of the captured graph."""

    data: bool = False  # depends on the batch, on chance, or on a buffer updated from data
    grad: bool = False  # carries gradient to a trainable parameter
    batched: bool = False  # holds one part for each sample
    axes: tuple[SampleAxis | None, ...] = ()  # of each tensor that it returns; None where unknown
    op: str = ""  # name of the operator that the user called, where a pass has spelled it out


def note(node: fx.Node) -> Note:
    """Read the note of a node (an empty one if there is none)."""
    return node.meta.get(KEY, Note())


def annotate(node: fx.Node, **changes: Any) -> None:
    """Change fields of a node's note."""
    node.meta[KEY] = replace(note(node), **changes)


def operator_name(node: fx.Node) -> str:
    """Name of the operator that the user called: `lstm` for a product inside of one."""
    return note(node).op or target_name(node)


def facts(gm: fx.GraphModule) -> dict[str, Any]:
    """What is known of a whole graph: use groups, contributions, mutated inputs."""
    return gm.meta.setdefault(KEY, {})


def source_line(node: fx.Node) -> str:
    """`file:line: code` of the innermost frame of the user's own code that made this node."""
    trace = node.meta.get("stack_trace") or ""
    lines = trace.splitlines()
    frames = []
    for at, line in enumerate(lines):
        if line.strip().startswith('File "'):
            parts = line.strip().split('"')
            number = parts[2].split("line ")[1].split(",")[0] if "line " in parts[2] else "?"
            code = lines[at + 1].strip() if at + 1 < len(lines) else ""
            frames.append((parts[1], number, code))
    own = [f for f in frames if "/torch/" not in f[0]] or frames
    if not own:
        return "unknown line"
    path, number, code = own[-1]
    return f"{path.rsplit('/', 1)[-1]}:{number}: {code}"
