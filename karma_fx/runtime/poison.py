"""A tier that makes every missing wait visible, without threads, a disk or a GPU.

Deterministic: a copy happens in its ``wait``, never before. Until then the destination is poison
(bytes of 0xFF: NaN in every float, -1 in every integer), and so is a source after its release.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from karma_fx.runtime.tier import Slot, Transfer

POISON = 0xFF


class _Late:
    """A transfer that copies when it is waited for, once."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run: Callable[[], object] | None = run

    def done(self) -> bool:
        return self._run is None

    def wait(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run()


class PoisonTier:
    """Implements ``tier.Tier``. ``held`` maps a slot's number to its bytes.

    ``faults`` tells of missing waits that poison may not show, since an operation need not look at
    all that it is given: a load from a slot whose store was not waited for, a slot that was freed
    before a load from it was waited for.
    """

    name = "poison"

    def __init__(self) -> None:
        self.held: dict[int, torch.Tensor] = {}
        self.faults: list[str] = []
        self._pending: dict[int, list[_Late]] = {}
        self._numbers = itertools.count()

    def reserve(self, nbytes: int) -> None:
        """Never fails."""

    def alloc(self, nbytes: int) -> Slot:
        slot = Slot(next(self._numbers), nbytes)
        self.held[slot.offset] = torch.full((nbytes,), POISON, dtype=torch.uint8)
        self._pending[slot.offset] = []
        return slot

    def free(self, slot: Slot) -> None:
        self.held.pop(slot.offset).fill_(POISON)
        if any(not load.done() for load in self._pending.pop(slot.offset)[1:]):
            self.faults.append(f"slot {slot.offset} was freed before its load was waited for")

    def store(self, near: torch.Tensor, slot: Slot) -> Transfer:
        late = _Late(lambda: self.held[slot.offset].copy_(near))
        self._pending[slot.offset].append(late)
        return late

    def load(self, slot: Slot, near: torch.Tensor) -> Transfer:
        near.fill_(POISON)
        if not self._pending[slot.offset][0].done():
            self.faults.append(f"slot {slot.offset} was loaded before its store was waited for")
        late = _Late(lambda: near.copy_(self.held[slot.offset]))
        self._pending[slot.offset].append(late)
        return late

    def released(self, near: torch.Tensor) -> None:
        near.fill_(POISON)

    def close(self) -> None:
        self.held.clear()
        self._pending.clear()
