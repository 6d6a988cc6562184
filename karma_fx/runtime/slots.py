"""Which far bytes are taken: runs of whole pages in one growing address space, reused."""

from __future__ import annotations

import threading
from bisect import insort
from collections import deque

from karma_fx.runtime.tier import Slot

PAGE = 4096


def whole_pages(nbytes: int) -> int:
    """``nbytes`` rounded up to pages, at least one."""
    return max(PAGE, -(-nbytes // PAGE) * PAGE)


class Slots:
    """First fit over the free runs, which are merged with their neighbours.

    ``free`` only appends to a queue, so a finalizer may call it at any moment, also in the middle
    of ``alloc`` on the same thread. ``end`` is how far the address space has grown.
    """

    def __init__(self) -> None:
        self.end = 0
        self.taken_bytes = 0
        self._runs: list[tuple[int, int]] = []  # (offset, bytes), by offset
        self._freed: deque[Slot] = deque()
        self._lock = threading.Lock()

    def alloc(self, nbytes: int) -> Slot:
        with self._lock:
            self._take_back()
            need = whole_pages(nbytes)
            self.taken_bytes += need
            for at, (offset, size) in enumerate(self._runs):
                if size >= need:
                    rest = [(offset + need, size - need)] if size > need else []
                    self._runs[at : at + 1] = rest
                    return Slot(offset, nbytes)
            return Slot(self._grow(need), nbytes)

    def free(self, slot: Slot) -> None:
        self._freed.append(slot)

    def _grow(self, need: int) -> int:
        """Take ``need`` bytes at the end, a free run that ends there included."""
        offset = self.end
        if self._runs and sum(self._runs[-1]) == self.end:
            offset, _ = self._runs.pop()
        self.end = offset + need
        return offset

    def _take_back(self) -> None:
        while self._freed:
            slot = self._freed.popleft()
            size = whole_pages(slot.nbytes)
            self.taken_bytes -= size
            insort(self._runs, (slot.offset, size))
        merged: list[tuple[int, int]] = []
        for offset, size in self._runs:
            if merged and sum(merged[-1]) == offset:
                offset, size = merged[-1][0], merged.pop()[1] + size
            merged.append((offset, size))
        self._runs = merged
