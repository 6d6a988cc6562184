"""Another tier, slowed down: a link of a given speed, to test and measure schedules with."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from karma_fx.errors import FarMemoryError
from karma_fx.runtime.slots import whole_pages
from karma_fx.runtime.tier import Slot, Tier, Transfer
from karma_fx.runtime.worker import Worker
from karma_fx.units import format_bytes


class ThrottledTier:
    """Wraps ``inner``: a transfer of ``n`` bytes takes at least ``latency_s + n / rate``; slots
    beyond ``cap_bytes`` in all are refused with ``FarMemoryError``. Owns ``inner``."""

    name = "throttled"

    def __init__(
        self,
        inner: Tier,
        *,
        out_bytes_per_s: float,
        in_bytes_per_s: float,
        latency_s: float = 0.0,
        cap_bytes: int | None = None,
    ) -> None:
        if min(out_bytes_per_s, in_bytes_per_s) <= 0 or latency_s < 0:
            raise ValueError("rates must be positive, and latency not negative")
        self.inner = inner
        self.out_bytes_per_s, self.in_bytes_per_s = out_bytes_per_s, in_bytes_per_s
        self.latency_s, self.cap_bytes = latency_s, cap_bytes
        self._out, self._in = Worker("karma-throttled-out"), Worker("karma-throttled-in")
        self._taken: dict[int, int] = {}  # bytes of live slots, by offset

    def reserve(self, nbytes: int) -> None:
        self._check_cap(nbytes)
        self.inner.reserve(nbytes)

    def alloc(self, nbytes: int) -> Slot:
        self._check_cap(sum(list(self._taken.values())) + whole_pages(nbytes))
        slot = self.inner.alloc(nbytes)
        self._taken[slot.offset] = whole_pages(nbytes)
        return slot

    def free(self, slot: Slot) -> None:
        self._taken.pop(slot.offset)
        self.inner.free(slot)

    def store(self, near: torch.Tensor, slot: Slot) -> Transfer:
        took_s = self.latency_s + slot.nbytes / self.out_bytes_per_s
        return self._out.submit(_slow(lambda: self.inner.store(near, slot).wait(), took_s))

    def load(self, slot: Slot, near: torch.Tensor) -> Transfer:
        took_s = self.latency_s + slot.nbytes / self.in_bytes_per_s
        return self._in.submit(_slow(lambda: self.inner.load(slot, near).wait(), took_s))

    def released(self, near: torch.Tensor) -> None:
        self.inner.released(near)

    def close(self) -> None:
        self._out.close()
        self._in.close()
        self.inner.close()

    def _check_cap(self, nbytes: int) -> None:
        if self.cap_bytes is not None and nbytes > self.cap_bytes:
            raise FarMemoryError(
                f"far memory is capped at {format_bytes(self.cap_bytes)}, "
                f"{format_bytes(nbytes)} are needed"
            )


def _slow(copy: Callable[[], None], took_s: float) -> Callable[[], None]:
    def run() -> None:
        end = time.perf_counter() + took_s
        copy()
        time.sleep(max(0.0, end - time.perf_counter()))

    return run
