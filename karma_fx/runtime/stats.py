"""What the transfers of this process have done so far."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Stats:
    """Cumulative over the process. ``graphs`` counts training graphs that karma compiled (0: torch
    never called it), ``stalled_s`` is time in which compute waited for a transfer."""

    graphs: int = 0
    offloaded_bytes: int = 0
    prefetched_bytes: int = 0
    stalled_s: float = 0.0


class _Counter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = Stats()

    def add(
        self, graphs: int = 0, offloaded: int = 0, prefetched: int = 0, stalled_s: float = 0.0
    ) -> None:
        with self._lock:
            now = self._stats
            self._stats = Stats(
                now.graphs + graphs,
                now.offloaded_bytes + offloaded,
                now.prefetched_bytes + prefetched,
                now.stalled_s + stalled_s,
            )

    def read(self) -> Stats:
        with self._lock:
            return replace(self._stats)

    def reset(self) -> None:
        with self._lock:
            self._stats = Stats()


COUNTER = _Counter()


def stats() -> Stats:
    """Bytes moved and time stalled in this process since the start or the last reset."""
    return COUNTER.read()


def reset_stats() -> None:
    """Start counting from zero."""
    COUNTER.reset()
