"""What every implementation of far memory offers to the engine.

A tier moves flat runs of bytes. It knows nothing of graphs, plans, shapes or dtypes.
Two FIFO queues, one a direction, so that a copy out never waits behind a copy in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch


class Transfer(Protocol):
    """A copy that was started."""

    def done(self) -> bool:
        """True once the copy has ended, well or badly. Never blocks."""

    def wait(self) -> None:
        """Block until the copy has ended. Raises ``FarMemoryError`` when it failed."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A run of far bytes: ``offset`` is meaningful to its tier alone."""

    offset: int
    nbytes: int


@runtime_checkable
class Tier(Protocol):
    """Far memory.

    ``near`` tensors are 1-D contiguous uint8, on the near device; the caller keeps them alive and
    unchanged (store) or unread (load) until the transfer's ``wait`` has returned.
    """

    name: str

    def reserve(self, nbytes: int) -> None:
        """Make sure that ``nbytes`` can be held at once. Raises ``FarMemoryError`` if not."""

    def alloc(self, nbytes: int) -> Slot:
        """Take a slot, growing past the reservation if need be. Raises ``FarMemoryError``."""

    def free(self, slot: Slot) -> None:
        """Give a slot back. May be called from any thread, also from a finalizer; never blocks
        on I/O: a slot whose store is still queued is recycled only once that store has ended."""

    def store(self, near: torch.Tensor, slot: Slot) -> Transfer:
        """Start copying ``near`` into ``slot``."""

    def load(self, slot: Slot, near: torch.Tensor) -> Transfer:
        """Start copying ``slot`` into ``near``."""

    def released(self, near: torch.Tensor) -> None:
        """Told after a store's wait: the engine will not read ``near`` again (poison fills it)."""

    def close(self) -> None:
        """Stop threads, close descriptors, drop all bytes. Idempotent."""
