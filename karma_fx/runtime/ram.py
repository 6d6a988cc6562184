"""Far memory in RAM: for tests, and under a device's near memory on machines with plenty.

The bytes live in anonymous SHARED mappings, which RLIMIT_DATA does not count, in chunks, since a
mapping that is in use can't grow.
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right

from karma_fx.errors import FarMemoryError
from karma_fx.runtime.queued import QueuedTier
from karma_fx.runtime.slots import whole_pages
from karma_fx.units import MIB, format_bytes

_CHUNK = 64 * MIB


class RamTier(QueuedTier):
    """``cap_bytes`` bounds how much it may hold (None: no bound)."""

    name = "ram"

    def __init__(self, cap_bytes: int | None = None) -> None:
        super().__init__()
        self.cap_bytes = cap_bytes
        self._chunks: list[mmap.mmap] = []
        self._starts: list[int] = []
        self._addresses: list[int] = []
        self._mapped = 0

    def _extend(self, nbytes: int) -> None:
        if self.cap_bytes is not None and nbytes > whole_pages(self.cap_bytes):
            raise FarMemoryError(
                f"far memory in RAM needs {format_bytes(nbytes)}, "
                f"its cap is {format_bytes(self.cap_bytes)}"
            )
        missing = nbytes - self._mapped
        if missing <= 0:
            return
        size = max(missing, _CHUNK)
        try:
            chunk = mmap.mmap(-1, size)
        except (OSError, ValueError, OverflowError) as error:
            raise FarMemoryError(
                f"far memory in RAM can't take {format_bytes(size)} more ({error}); "
                "use far='disk', or raise options['memory'] so that less is offloaded"
            ) from error
        self._starts.append(self._mapped)
        self._addresses.append(ctypes.addressof(ctypes.c_char.from_buffer(chunk)))
        self._chunks.append(chunk)
        self._mapped += size

    def _write(self, address: int, offset: int, nbytes: int) -> None:
        for far, start, size in self._pieces(offset, nbytes):
            ctypes.memmove(far, address + start, size)

    def _read(self, offset: int, address: int, nbytes: int) -> None:
        for far, start, size in self._pieces(offset, nbytes):
            ctypes.memmove(address + start, far, size)

    def _pieces(self, offset: int, nbytes: int) -> list[tuple[int, int, int]]:
        """(address in far memory, start within the tensor, bytes): a slot may span chunks."""
        pieces, start = [], 0
        while start < nbytes:
            at = bisect_right(self._starts, offset + start) - 1
            inside = offset + start - self._starts[at]
            size = min(nbytes - start, len(self._chunks[at]) - inside)
            pieces.append((self._addresses[at] + inside, start, size))
            start += size
        return pieces

    def _shut(self) -> None:
        # Without the last reference the mapping goes; mmap.close refuses while it is exported.
        self._chunks.clear()
        self._addresses.clear()
