"""codegen: a graph -> a callable that takes ONE list of inputs and frees each at its last use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from karma_fx import torch_compat

Compiled = Callable[[list[Any]], Any]


def generate(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    """FX's own Python code for ``graph_module``, boxed: every value is dropped after its last use,
    inputs included. ``example_inputs`` are not looked at."""
    torch_compat.box_codegen(graph_module)
    forward = graph_module.forward

    def run(inputs: list[Any]) -> Any:
        return forward(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
