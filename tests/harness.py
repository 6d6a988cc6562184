"""Shared by the tests: small models, training steps, and comparison to the unscheduled graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import karma_fx
from karma_fx import models
from karma_fx.profile.meter import MemoryMeter

STRATEGIES = ("keep", "offload", "recompute", "checkpoint", "karma")

MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "gpt": lambda: models.gpt(
        layers=3, width=64, heads=4, context=64, batch=4, vocab=64, dropout=0.1
    ),
    "convnet": lambda: models.convnet(batch=4),
    "unet": lambda: models.unet(batch=2),
    "lstm": lambda: models.lstm(batch=16, steps=6),
    "mlp": lambda: models.mlp(batch=1024),
}


def build(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    return module, tuple(inputs)


@dataclass
class Run:
    """Everything that three training steps left behind."""

    losses: list[float] = field(default_factory=list)
    tensors: list[torch.Tensor | None] = field(default_factory=list)
    peak_bytes: int = 0


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def train(
    module: nn.Module,
    inputs: tuple[Any, ...],
    backend: Any,
    *,
    steps: int = 3,
    meter: bool = False,
    **options: Any,
) -> Run:
    """Train a copy of ``module``; loss, gradients, parameters and buffers of every step are kept
    apart from the memory that the meter sees."""
    module = copy.deepcopy(module)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=backend, **({"options": options} if options else {}))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.manual_seed(1)
    run = Run()
    for step in range(steps):
        if meter and step:  # the first step compiles
            held = storage_bytes([*module.parameters(), *module.buffers(), *tensors_in(inputs)])
            with MemoryMeter() as memory:
                loss = forward_backward(compiled, inputs)
            run.peak_bytes = max(run.peak_bytes, held + memory.peak_bytes)
        else:
            loss = forward_backward(compiled, inputs)
        run.losses.append(loss.item())
        grads = [p.grad for p in module.parameters()]
        run.tensors += [None if g is None else g.clone() for g in grads]
        optimizer.step()
        optimizer.zero_grad()
        state = [*module.parameters(), *module.buffers()]
        run.tensors += [t.detach().clone() for t in state]
    return run


def forward_backward(compiled: Callable[..., torch.Tensor], inputs: tuple[Any, ...]) -> Any:
    loss = compiled(*inputs)
    loss = loss if loss.ndim == 0 else loss.sum()
    loss.backward()
    return loss.detach()


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def assert_same(expected: Run, found: Run) -> None:
    """Bitwise: every loss, gradient (also which are None), parameter and buffer."""
    assert [x.hex() for x in expected.losses] == [x.hex() for x in found.losses]
    assert len(expected.tensors) == len(found.tensors)
    for index, (a, b) in enumerate(zip(expected.tensors, found.tensors, strict=True)):
        assert (a is None) == (b is None), index
        if a is not None and b is not None:
            assert a.dtype == b.dtype and torch.equal(a, b), index


def plan_of(tmp_path: Any, module: nn.Module, inputs: tuple[Any, ...], **options: Any) -> Any:
    """The plan that ``options`` lead to (from one training step)."""
    path = tmp_path / "plan.json"
    train(module, inputs, "karma", steps=1, export=path, **options)
    return karma_fx.load_plan(path)
