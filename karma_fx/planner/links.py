"""The links between near and far memory, as the planner sees them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Links:
    """One queue a direction: a transfer of ``n`` bytes takes ``latency_us + n / bytes_per_us``.

    ``interference`` is the share by which compute slows down while a transfer runs (0.1: 10%).
    """

    out_bytes_per_us: float
    in_bytes_per_us: float
    latency_us: float = 0.0
    interference: float = 0.0

    def out_us(self, nbytes: int) -> float:
        return self.latency_us + nbytes / self.out_bytes_per_us

    def in_us(self, nbytes: int) -> float:
        return self.latency_us + nbytes / self.in_bytes_per_us
