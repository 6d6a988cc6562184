"""What the passes hand to each other: one joint graph on its way to two runnable graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import fx

from karma_fx.options import Options
from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem, Storage
from karma_fx.planner.sequence import Sequence
from karma_fx.plans import Plan
from karma_fx.profile.devices import DeviceProfile
from karma_fx.record import NodeRecord, record_of


@dataclass
class Work:
    """The state of one compilation. Passes fill it from top to bottom."""

    joint: fx.GraphModule
    num_fwd_outputs: int
    options: Options
    device: str = "cpu"
    offline: bool = False  # nothing will run here
    storages: list[Storage] = field(default_factory=list)  # annotate
    gradients: frozenset[int] = frozenset()  # annotate
    block_names: list[str] = field(default_factory=list)  # partition
    problem: Problem | None = None  # cost
    profile: DeviceProfile | None = None  # of the device, where it is not measured
    links: Links | None = None
    plan: Plan | None = None  # schedule
    sequence: Sequence | None = None  # schedule
    forward: fx.GraphModule | None = None  # split
    backward: fx.GraphModule | None = None  # split
    engine: Any = None  # transfers

    def operations(self) -> Iterator[tuple[fx.Node, NodeRecord]]:
        """The joint graph's operations with their records, in order."""
        for node in self.joint.graph.nodes:
            record = record_of(node)
            if record is not None:
                yield node, record

    def graphs(self) -> dict[str, fx.GraphModule]:
        """The graphs that exist by now, by name."""
        if self.forward is None or self.backward is None:
            return {"joint": self.joint}
        return {"forward": self.forward, "backward": self.backward}


class Pass(Protocol):
    """One step of the pipeline. Implementations are frozen dataclasses; options are fields."""

    @property
    def name(self) -> str: ...

    def apply(self, work: Work) -> None: ...
