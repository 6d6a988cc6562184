"""The back end that ``torch.compile(model, backend="karma", options={...})`` calls.

See ``karma_fx.options`` for the options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from karma_fx import torch_compat
from karma_fx.errors import KarmaError, OptionError
from karma_fx.options import Options, parse_options
from karma_fx.passes.codegen import generate
from karma_fx.pipeline import print_graphs, run_pipeline
from karma_fx.profile.devices import DeviceProfile, find_device
from karma_fx.profile.links import links_of
from karma_fx.runtime.malloc import return_freed_memory
from karma_fx.runtime.pool import shared_tier
from karma_fx.runtime.stats import COUNTER
from karma_fx.work import Work


def karma(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Any:
    """Compile ``gm`` to run within a byte budget of near memory.

    Raises ``OptionError`` for unknown options or bad values, ``InfeasibleBudgetError`` (naming the
    smallest feasible budget) when no plan fits, ``FarMemoryError`` when far memory can't be
    reserved. ``mode`` must be None or "default": karma has no modes, only options.
    """
    try:
        if mode not in (None, "default"):
            raise OptionError(f"karma has no mode {mode!r}; use options, or leave mode out")
        return _compile(gm, example_inputs, parse_options(options))
    except KarmaError as error:
        raise torch_compat.as_user_error(error) from error


def _compile(gm: fx.GraphModule, example_inputs: Sequence[Any], options: Options) -> Any:
    return_freed_memory()
    compiler = torch_compat.aot_autograd(
        fw_compiler=generate,
        bw_compiler=generate,
        inference_compiler=generate,
        partition_fn=Partitioner(options),
        keep_inference_input_mutations=True,
    )
    return compiler(gm, example_inputs)


def device_of(options: Options) -> DeviceProfile | None:
    """The described device that costs are estimated for; None to measure."""
    if options.profile == "measure":
        return None
    return find_device("cpu" if options.profile == "estimate" else options.profile)


class Partitioner:
    """The ``partition_fn`` that AOTAutograd calls with a joint graph; runs the pipeline on it."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def __call__(
        self, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **_: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        work = Work(joint, num_fwd_outputs, self.options)
        work.profile = device_of(self.options)
        shared = shared_tier(self.options.far)  # held here until the graphs hold it
        work.links = work.profile.links() if work.profile else links_of(shared.tier)
        hook = print_graphs if self.options.debug == "print" else None
        graphs = run_pipeline(work, hook)
        COUNTER.add(graphs=1)
        return graphs
