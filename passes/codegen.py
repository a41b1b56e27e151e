"""Python code that calls operators directly: a step of a small model is mostly calls."""

import re
from typing import Any

import torch
from torch import fx
from torch.fx.graph import CodeGen, PythonCode

_CALL = re.compile(r"\btorch\.ops\.(\w+)\.(\w+)\.(\w+)\(")
# Overloads that functions of torch take in the same way, with less work on the arguments.
_SAME = {
    "add.Tensor", "addcmul.default", "addmm.default", "bmm.default", "cat.default", "mm.default",
    "mul.Tensor", "permute.default", "relu.default", "reshape.default", "sub.Tensor",
    "sum.dim_IntList", "t.default", "tanh.default", "transpose.int", "unsqueeze.default",
}  # fmt: skip


class DirectCalls(CodeGen):
    """Binds every operator overload to a global name, rather than look it up at each call.

    before   relu = torch.ops.aten.relu.default(x)
    becomes  relu = aten_relu_default(x)
    """

    def _gen_python_code(self, *args: Any, **kwargs: Any) -> PythonCode:
        code = super()._gen_python_code(*args, **kwargs)

        def bound(found: re.Match) -> str:
            namespace, packet, overload = found.groups()
            name = "_".join(found.groups())
            op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
            same = namespace == "aten" and f"{packet}.{overload}" in _SAME
            code.globals[name] = getattr(torch, packet) if same else op._op
            return f"{name}("

        code.src = _CALL.sub(bound, code.src)
        return code


def runnable(root: torch.nn.Module, graph: fx.Graph, name: str) -> fx.GraphModule:
    """A module for a finished graph, whose nodes keep no notes: there are thousands of them."""
    for node in graph.nodes:
        node.meta = {}
    graph.set_codegen(DirectCalls())
    return fx.GraphModule(root, graph, class_name=name)
