"""The passes, in order, and what happens between them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from torch import fx

from karma_fx.passes.annotate import Annotate
from karma_fx.passes.cost import Cost
from karma_fx.passes.partition import Partition
from karma_fx.passes.schedule import Schedule
from karma_fx.passes.split import Split
from karma_fx.passes.transfers import Transfers
from karma_fx.profile.devices import DeviceProfile
from karma_fx.verify import verify
from karma_fx.work import Pass, Work

Hook = Callable[[Pass, Work, float], None]
"""``hook(pass, work, seconds)``, called after every pass."""


DECIDING = 3
"""Which pass decides. Those before it analyze, those after it act."""


def pipeline(device: DeviceProfile | None) -> tuple[Pass, ...]:
    """The passes from joint graph to runnable graphs; costs are measured or ``device``'s."""
    return (Annotate(), Partition(), Cost(device), Schedule(), Split(), Transfers())


def run_pipeline(work: Work, hook: Hook | None = None) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Run every pass on ``work``, verify after each, and return (forward, backward)."""
    run_passes(work, pipeline(work.profile), hook)
    assert work.forward is not None and work.backward is not None
    return work.forward, work.backward


def run_passes(work: Work, passes: tuple[Pass, ...], hook: Hook | None = None) -> None:
    """Run ``passes`` on ``work``, and verify after each."""
    for step in passes:
        start = time.perf_counter()
        step.apply(work)
        if hook is not None:
            hook(step, work, time.perf_counter() - start)
        verify(work, after=step.name)


def print_graphs(step: Pass, work: Work, seconds: float) -> None:
    """A hook that prints the graphs as readable code, and which pass made them, to stderr."""
    for name, module in work.graphs().items():
        print(f"# {name} graph after {step.name} ({seconds * 1e3:.1f} ms)", file=sys.stderr)
        print(module.graph.python_code("self").src, file=sys.stderr)
