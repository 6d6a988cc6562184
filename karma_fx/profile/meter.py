"""An exact meter of near bytes on the CPU, from the allocator's own events."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import accumulate
from types import TracebackType

import torch

from karma_fx import torch_compat


@dataclass
class MemoryMeter:
    """Counts every tensor byte that is allocated and freed inside the ``with`` block.

    After it, ``peak_bytes`` is the most that was held over what was held at the start, and
    ``held_bytes`` what is still held over it (negative when more was freed).
    """

    peak_bytes: int = 0
    held_bytes: int = 0
    curve: list[tuple[int, int]] = field(default_factory=list)

    def __enter__(self) -> MemoryMeter:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes two lines each time
        self._profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        self._profile.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._profile.__exit__(kind, error, trace)
        events = torch_compat.allocation_events(self._profile)
        totals = list(accumulate(size for _, size in events))
        self.curve = [(at, total) for (at, _), total in zip(events, totals, strict=True)]
        self.peak_bytes = max([0, *totals])
        self.held_bytes = totals[-1] if totals else 0
