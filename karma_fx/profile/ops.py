"""What one operation costs: its time, and the workspace it takes beyond its outputs.

Each distinct operation (target, shapes, dtypes, strides, other arguments) is measured once, alone,
on inputs made for it, so that profiling never needs more memory than one operation.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from karma_fx import torch_compat
from karma_fx.profile.meter import MemoryMeter
from karma_fx.profile.store import Store

_NAMESPACES = ("aten", "prims")
_MIN_RUNS, _MAX_RUNS, _ENOUGH_S = 3, 15, 0.03
GUESS_BYTES_PER_US = 4000.0
"""Memory rate assumed for operations that can't be measured."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """``peak_bytes`` is the most that the operation holds, its outputs included."""

    time_us: float
    peak_bytes: int


def op_key(node: fx.Node) -> str:
    """What tells distinct operations apart."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    values = (leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf for leaf in leaves)
    parts = [_describe(value) for value in values]
    return f"{node.target}({', '.join(parts)}) {hash_free(spec)}"


def hash_free(spec: Any) -> str:
    """The tree structure, short and the same in every process."""
    return str(spec).replace(" ", "").replace("TreeSpec", "").replace("\n", "")


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = [torch_compat.size_hint(n) for n in value.shape]
        strides = [torch_compat.size_hint(n) for n in _strides(value)]
        return f"{str(value.dtype).removeprefix('torch.')}{sizes}{strides}{value.device}"
    if isinstance(value, torch.SymInt):
        return str(torch_compat.size_hint(value))
    return repr(value)


def _strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.stride() if tensor.layout is torch.strided else ()


def can_measure(node: fx.Node) -> bool:
    """Only torch's own functional operations on plain tensors are run on made-up inputs."""
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and target.namespace in _NAMESPACES
        and not node.meta.get("unbacked_bindings")
    )


def cost_of(node: fx.Node, store: Store) -> OpCost | None:
    """The measured cost of ``node``, from ``store`` or by running it; None if it can't be run."""
    key = op_key(node)
    known = store.get(key)
    if known is None:
        known = _measure(node)
        store.put(key, known)
    return OpCost(float(known[0]), int(known[1])) if known else None


def guess(node: fx.Node) -> OpCost:
    """A cost by size alone, for operations that can't be measured."""
    nodes = [node, *node.all_input_nodes]
    values = [t for n in nodes for t in pytree.tree_leaves(n.meta.get("val"))]
    moved = sum(
        torch_compat.size_hint(t.numel()) * t.element_size()
        for t in values
        if isinstance(t, torch.Tensor)
    )
    return OpCost(1.0 + moved / GUESS_BYTES_PER_US, 0)


def _measure(node: fx.Node) -> list[float]:
    if not can_measure(node):
        return []
    assert callable(node.target)
    with torch_compat.real_mode(), torch.random.fork_rng(devices=[]):
        try:
            args, kwargs = _make_inputs(node)
            call = _Call(node.target, args, kwargs)
            peak_bytes = call.peak_bytes()
            return [call.median_us(), peak_bytes]
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return []  # made-up values do not suit this operation; it is costed by its size


@dataclass
class _Call:
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def peak_bytes(self) -> int:
        with MemoryMeter() as meter:
            result = self.target(*self.args, **self.kwargs)
        del result
        return meter.peak_bytes

    def median_us(self) -> float:
        """Freeing what was made is part of the time: pages go back to the system, in a step too."""
        times: list[float] = []
        begin = time.perf_counter()
        while len(times) < _MIN_RUNS or (
            len(times) < _MAX_RUNS and time.perf_counter() - begin < _ENOUGH_S
        ):
            start = time.perf_counter()
            self.target(*self.args, **self.kwargs)
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e6


def _make_inputs(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    made = fx.map_arg((node.args, node.kwargs), lambda n: n)
    args, kwargs = pytree.tree_map_only(fx.Node, lambda n: _make(n.meta["val"]), made)
    return tuple(args), dict(kwargs)


def _make(value: Any) -> Any:
    """A real value like the fake ``value``: halves for floats, zeros for the rest."""
    if isinstance(value, torch.SymInt):
        return torch_compat.size_hint(value)
    if not isinstance(value, torch.Tensor):
        return pytree.tree_map_only(torch.Tensor, _make, value) if _is_tree(value) else value
    sizes = [torch_compat.size_hint(n) for n in value.shape]
    strides = [torch_compat.size_hint(n) for n in value.stride()]
    tensor = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    return tensor.fill_(0.5 if value.dtype.is_floating_point or value.dtype.is_complex else 0)


def _is_tree(value: Any) -> bool:
    return isinstance(value, tuple | list)
