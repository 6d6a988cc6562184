"""Plans for a device that one does not have, from fake tensors: nothing is allocated.

    plan = karma_fx.plan(model, inputs, memory="14GiB", device="v100-16gb")

``model`` and ``inputs`` may be real, fake or on the meta device; only their shapes, strides and
dtypes are looked at. The graph is the one that ``torch.compile(model, backend="karma")`` would
compile, so the plan can be replayed there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from karma_fx import torch_compat
from karma_fx.errors import UnsupportedError
from karma_fx.options import Options, parse_options
from karma_fx.pipeline import DECIDING, pipeline, run_passes
from karma_fx.planner.links import Links
from karma_fx.plans import Plan
from karma_fx.profile.devices import DeviceProfile, find_device
from karma_fx.profile.links import links_of
from karma_fx.runtime.pool import shared_tier
from karma_fx.work import Work


def plan(
    fn_or_module: Callable[..., Any] | nn.Module,
    inputs: Sequence[Any],
    *,
    memory: int | str | float | None = None,
    device: str = "cpu",
    strategy: str = "karma",
    reserve: int | str = 0,
) -> Plan:
    """Plan one training step (forward and backward) of ``fn_or_module(*inputs)``.

    ``memory`` is the budget (bytes, or "6GiB"; default: the device's memory), ``device`` a preset
    ("v100-16gb", "h100-80gb", ...) or a JSON file. The output, or its first floating-point tensor
    summed, is the loss. Raises ``InfeasibleBudgetError`` naming the smallest feasible budget,
    ``OptionError`` for bad arguments, ``UnsupportedError`` for what is not one graph.
    """
    options = parse_options({"memory": memory, "strategy": strategy, "reserve": reserve})
    work = analyze(fn_or_module, inputs, device=find_device(device), options=options)
    run_passes(work, pipeline(work.profile)[DECIDING : DECIDING + 1])
    assert work.plan is not None
    return work.plan


def analyze(
    fn_or_module: Callable[..., Any] | nn.Module,
    inputs: Sequence[Any],
    *,
    device: DeviceProfile | None,
    options: Options | None = None,
) -> Work:
    """Capture the joint graph and bring it to where a plan can be made: ``work.problem`` and
    ``work.links`` are there. Costs are ``device``'s; where that is None they, and the link to
    ``options.far``, are measured on this machine. Raises ``UnsupportedError`` for what is not one
    graph."""
    joint, num_fwd_outputs = capture(fn_or_module, inputs)
    options = options or Options()
    name = device.name if device else "cpu"
    work = Work(joint, num_fwd_outputs, options, device=name, offline=True)
    work.profile = device
    work.links = device.links() if device else measured_links(options.far)
    run_passes(work, pipeline(device)[:DECIDING])
    return work


def measured_links(far: str) -> Links:
    """The links of the tier that ``far`` names, measured once on this machine."""
    shared = shared_tier(far)  # open for as long as this is held
    return links_of(shared.tier)


@dataclass
class _Captured(Exception):
    joint: fx.GraphModule
    num_fwd_outputs: int


def _capture_graph(
    joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **_: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    raise _Captured(joint, num_fwd_outputs)


def capture(
    fn_or_module: Callable[..., Any] | nn.Module, inputs: Sequence[Any]
) -> tuple[fx.GraphModule, int]:
    """The joint graph of ``fn_or_module(*inputs)`` and its number of forward outputs."""
    faker = torch_compat.Faker()
    call = fn_or_module
    if isinstance(fn_or_module, nn.Module):
        call = faker.module(fn_or_module)
    given = [faker.tensor(x) if isinstance(x, torch.Tensor) else x for x in inputs]
    compiler = torch_compat.aot_autograd(
        fw_compiler=_unreached, bw_compiler=_unreached, partition_fn=_capture_graph
    )
    try:
        with faker.mode:
            torch.compile(call, backend=compiler, fullgraph=True, dynamic=False)(*given)
    except Exception as error:
        found = _cause(error)
        if found is not None:
            return found.joint, found.num_fwd_outputs
        raise UnsupportedError(
            f"the model can't be captured as one training graph: {_first_line(error)}; "
            "see what breaks it with TORCH_LOGS=graph_breaks"
        ) from error
    raise UnsupportedError("the model does not train: nothing in its output requires a gradient")


def _unreached(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    return graph_module.forward


def _cause(error: BaseException | None) -> _Captured | None:
    while error is not None:
        if isinstance(error, _Captured):
            return error
        inner = getattr(error, "inner_exception", None)
        error = inner or error.__cause__ or error.__context__
    return None


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
