"""Strategies run on this machine, in turns: what their plans really take and need.

Single timings drift on a shared machine. So the strategies take turns, step by step in a shuffled
order, and what is reported is the median.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from karma_fx import torch_compat
from karma_fx.errors import UnsupportedError
from karma_fx.profile.meter import MemoryMeter

Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """One training step (forward and backward). ``peak_bytes`` counts parameters, buffers, inputs
    and gradients, and all that lives meanwhile."""

    step_us: float
    peak_bytes: int


def execute(
    module: nn.Module,
    inputs: Sequence[Any],
    options: Mapping[str, Mapping[str, Any]],
    *,
    rounds: int = 7,
    on_step: Callable[[], None] | None = None,
) -> dict[str, Measured]:
    """Train with each of ``options`` (those of the back end, by a name for each) for ``rounds``
    steps, in turns. ``on_step`` is called after each step: ``rounds + 1`` times for each name.

    The parameters are not updated; buffers are, as in training. Raises what compiling raises.
    """
    steps: dict[str, Step] = {}
    peaks: dict[str, int] = {}
    tell = on_step or (lambda: None)
    held = held_bytes(module, inputs)
    with torch_compat.many_recompiles(len(options)):
        for name, given in options.items():
            compiled = torch.compile(module, backend="karma", options=dict(given), dynamic=False)
            steps[name] = partial(train_step, module, compiled, inputs)
            steps[name]()  # compiles
            with MemoryMeter() as meter:
                steps[name]()
            peaks[name] = held + meter.peak_bytes
            tell()
        times = in_turns(steps, rounds, tell)
    return {name: Measured(1e6 * median(times[name]), peaks[name]) for name in steps}


def in_turns(
    steps: Mapping[str, Step], rounds: int, tell: Callable[[], None]
) -> dict[str, list[float]]:
    """Seconds of every step in every round; the order within a round is shuffled."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    names, random = list(steps), Random(0)
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            start = time.perf_counter()
            steps[name]()
            times[name].append(time.perf_counter() - start)
            tell()
    return times


def train_step(module: nn.Module, call: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Forward, backward, and the gradients dropped."""
    loss_of(call(*inputs)).backward()
    module.zero_grad(set_to_none=True)


def loss_of(output: Any) -> torch.Tensor:
    """The output, or its first floating-point tensor summed."""
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point():
            return leaf if leaf.dim() == 0 else leaf.sum()
    raise UnsupportedError("the model does not train: nothing in its output requires a gradient")


def held_bytes(module: nn.Module, inputs: Sequence[Any]) -> int:
    """Bytes of the parameters, buffers and inputs: storages, each once."""
    tensors = [*module.parameters(), *module.buffers()]
    tensors += [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
