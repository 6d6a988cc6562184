"""Every private import of torch's, in one place, so that another torch release is one file's work.

Read against torch 2.13.0. Nothing else in the project may import a name that begins with an
underscore from torch.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.exc import ShortenTraceback
from torch._functorch._aot_autograd.utils import (
    _is_bwd_seed_offset,
    _is_fwd_seed_offset,
    _is_tangent,
)
from torch._functorch.compile_utils import raise_getitems
from torch._functorch.partitioners import (
    _extract_fwd_bwd_modules,
    functionalize_rng_ops,
    has_recomputable_rng_ops,
)
from torch._guards import detect_fake_mode
from torch._prims.rng_prims import run_with_rng_state
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import is_sym_node
from torch.fx.graph import _BoxedCodeGen
from torch.fx.node import has_side_effect
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import CheckpointPolicy

__all__ = [
    "FakeTensor",
    "Faker",
    "allocation_events",
    "aot_autograd",
    "as_user_error",
    "box_codegen",
    "extract_forward_backward",
    "fake_like",
    "has_side_effect",
    "is_seed",
    "is_sym_node",
    "is_tangent",
    "lookup_backend",
    "pair_rng",
    "raise_getitems",
    "real_mode",
    "run_with_rng_state",
    "size_hint",
]


def size_hint(value: Any) -> int:
    """A concrete int for a size that may be symbolic (its hint; 0 when it has none)."""
    if isinstance(value, int):
        return value
    node = getattr(value, "node", None)
    hint = getattr(node, "hint", None)
    return int(hint) if isinstance(hint, int) else 0


def is_tangent(node: fx.Node) -> bool:
    """True for the placeholders that hold the gradients of the forward's outputs."""
    return bool(_is_tangent(node))


def is_seed(node: fx.Node) -> bool:
    """True for the placeholders of functionalised random seeds."""
    return bool(_is_fwd_seed_offset(node) or _is_bwd_seed_offset(node))


def box_codegen(graph_module: fx.GraphModule) -> None:
    """Make ``graph_module.forward`` take ONE list and clear it, so that inputs die early."""
    graph_module.graph.set_codegen(_BoxedCodeGen())
    graph_module.recompile()


def extract_forward_backward(
    joint: fx.GraphModule,
    saved: Sequence[fx.Node],
    saved_syms: Sequence[fx.Node],
    num_fwd_outputs: int,
) -> tuple[fx.GraphModule, fx.GraphModule, int]:
    """torch's own extraction: the forward that returns ``saved``, the backward that takes them.

    Returns both, and the number of SymInts saved once torch has pruned what backward does not use.
    """
    values, syms = list(saved), list(saved_syms)
    fw, bw = _extract_fwd_bwd_modules(
        joint, values, saved_sym_nodes=syms, num_fwd_outputs=num_fwd_outputs
    )
    return fw, bw, len(syms)


def pair_rng(
    joint: fx.GraphModule,
    fw: fx.GraphModule,
    bw: fx.GraphModule,
    recomputed: Sequence[fx.Node],
    num_syms: int,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Make each recomputed random op of ``bw`` replay the state that ``fw`` drew from.

    ``recomputed`` are joint nodes. torch pairs only nodes that are tagged; other nodes' tags (a
    user's own ``checkpoint``) are taken off, since the plan decides.
    """
    for node in joint.graph.nodes:
        node.meta.pop("recompute", None)
    for node in recomputed:
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        node.meta.setdefault("ac_graph_id", 1)
    if has_recomputable_rng_ops(joint):
        with _mode_of(joint.graph):
            fw, bw = functionalize_rng_ops(joint, fw, bw, num_syms)
    return fw, bw


def _mode_of(graph: fx.Graph) -> contextlib.AbstractContextManager[Any]:
    """The graph's fake mode, where none is active (torch looks for the active one)."""
    values = (node.meta.get("val") for node in graph.nodes)
    modes = (value.fake_mode for value in values if isinstance(value, FakeTensor))
    return contextlib.nullcontext() if detect_fake_mode() else next(modes)


def fake_like(make: Callable[[], torch.Tensor], example: fx.Node) -> torch.Tensor:
    """Run ``make`` under the fake mode that ``example``'s value belongs to."""
    value = example.meta.get("val")
    mode = value.fake_mode if isinstance(value, FakeTensor) else detect_fake_mode()
    if mode is None:
        return make()
    with mode:
        return make()


class Faker:
    """Turns modules and tensors (real, or on the meta device) into fake ones on the CPU."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._known: dict[int, torch.Tensor] = {}
        self._seen: list[torch.Tensor] = []  # keeps the ids in _known from being reused

    def tensor(self, value: torch.Tensor) -> torch.Tensor:
        """A fake tensor like ``value``; the same one for the same value (tied weights)."""
        if id(value) not in self._known:
            with self.mode:
                fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            fake.requires_grad_(value.requires_grad)
            if isinstance(value, torch.nn.Parameter):
                fake = torch.nn.Parameter(fake, requires_grad=value.requires_grad)
            self._known[id(value)] = fake
            self._seen.append(value)
        return self._known[id(value)]

    def module(self, module: torch.nn.Module) -> torch.nn.Module:
        """A copy of ``module`` (of its structure; no tensor is copied) with fake parameters and
        buffers."""
        memo: dict[int, Any] = {
            id(t): self.tensor(t) for t in [*module.parameters(), *module.buffers()]
        }
        return copy.deepcopy(module, memo)


@contextlib.contextmanager
def real_mode() -> Iterator[None]:
    """Leave every fake and tracing mode for a while: what runs inside runs on real tensors."""
    with _disable_current_modes(), unset_fake_temporarily(), torch.no_grad():
        yield


def as_user_error(error: Exception) -> Exception:
    """``error`` in a form that Dynamo hands to the user as it is, under its own name, instead of
    wrapping it into ``BackendCompilerFailed``."""
    kind = type(error)
    both = type(kind.__name__, (kind, ShortenTraceback), {"__module__": kind.__module__})
    shown: Exception = both.__new__(both, *error.args)
    shown.__dict__.update(error.__dict__)
    shown.first_useful_frame = None  # type: ignore[attr-defined]
    shown.args = error.args
    return shown


def allocation_events(profile: Any) -> list[tuple[int, int]]:
    """``(time_ns, bytes)`` of every allocation (positive) and free (negative) that a finished
    ``torch.profiler.profile(profile_memory=True)`` saw, in order of time."""
    stack = list(profile.profiler.kineto_results.experimental_event_tree())
    found: list[tuple[int, int]] = []
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.typed[0] == torch._C._profiler._EventType.Allocation:
            found.append((event.start_time_ns, event.typed[1].alloc_size))
    found.sort(key=operator.itemgetter(0))
    return found


def many_recompiles(count: int) -> AbstractContextManager[Any]:
    """Let one module be compiled ``count`` times, with different options each, and keep it all.

    torch keeps eight by default.
    """
    limit = max(dynamo_config.recompile_limit, count + 1)
    patched: AbstractContextManager[Any] = dynamo_config.patch(recompile_limit=limit)
    return patched
