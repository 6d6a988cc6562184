"""The one typed record that karma keeps on a graph node: ``node.meta["karma"]``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import fx

KEY = "karma"


class Phase(Enum):
    """Which of the two graphs a node of the joint graph belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(slots=True)
class NodeRecord:
    """What the passes know of one operation of the joint graph.

    ``index`` counts the operations of the joint graph in order; it survives the split, so that a
    node of the forward or backward graph can be traced back. ``touches`` are ids of the storages
    that the node reads, makes or aliases, ``makes`` those that it allocates.
    """

    index: int
    phase: Phase
    touches: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    block: int = 0
    time_us: float = 0.0
    workspace_bytes: int = 0
    recomputable: bool = False
    seeded: bool = False

    def __deepcopy__(self, memo: dict[int, Any]) -> NodeRecord:
        return self


def record_of(node: fx.Node) -> NodeRecord | None:
    """The record of ``node``, or None for nodes that are no operations (placeholders, SymInts)."""
    record = node.meta.get(KEY)
    return record if isinstance(record, NodeRecord) else None
