"""An event-driven simulation of one training step: a compute queue, an out-queue and an in-queue.

The steps may be operations or whole blocks. Between two transfers nothing happens but compute, so
the simulation jumps from transfer to transfer: its time grows with the moves, not with the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from karma_fx.planner.links import Links


@dataclass(frozen=True, slots=True)
class Move:
    """The schedule of one offloaded storage, as positions in the forward and backward sequences:
    each node goes before the operation at its position (``len`` of the sequence: at the end)."""

    storage: int
    offload: int
    wait_offload: int
    prefetch: int
    wait_prefetch: int


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a step takes, in microseconds. ``stalls`` are (phase, position, storage, time):
    where compute waited, and for which storage."""

    step_us: float
    compute_us: float
    stall_us: float
    stalls: tuple[tuple[str, int, int, float], ...] = ()


class Clock:
    """A compute queue and one FIFO link. Compute is ``slowdown`` times slower while the link is
    busy."""

    def __init__(self, slowdown: float = 1.0) -> None:
        self.slowdown = slowdown
        self.now = self.link_free = self.stall_us = 0.0

    def compute(self, work_us: float) -> None:
        busy = self.link_free - self.now
        if busy <= 0.0 or self.slowdown == 1.0:
            self.now += work_us
        elif work_us * self.slowdown <= busy:
            self.now += work_us * self.slowdown
        else:
            self.now += work_us + busy - busy / self.slowdown

    def copy(self, took_us: float) -> float:
        """Queue a copy; returns when it will have ended."""
        self.link_free = max(self.now, self.link_free) + took_us
        return self.link_free

    def wait(self, end: float) -> float:
        """Compute waits until ``end``; returns for how long."""
        stall = max(0.0, end - self.now)
        self.now += stall
        self.stall_us += stall
        return stall


Event = tuple[int, int, int]
"""(position, 0 for a start and 1 for a wait, storage): starts come first at each position."""


def simulate(
    times_fw: Sequence[float],
    times_bw: Sequence[float],
    moves: Sequence[Move],
    sizes: Mapping[int, int],
    links: Links,
) -> Timing:
    """Run forward, then backward. ``times_*`` are microseconds a step, ``sizes`` bytes."""
    out = [(move.offload, 0, move.storage) for move in moves]
    out += [(move.wait_offload, 1, move.storage) for move in moves]
    back = sorted((m.prefetch, m.wait_prefetch, m.storage) for m in moves)
    into = [(prefetch, 0, s) for prefetch, _, s in back]
    into += sorted((wait, 1, s) for _, wait, s in back)
    out_us = {move.storage: links.out_us(sizes[move.storage]) for move in moves}
    in_us = {move.storage: links.in_us(sizes[move.storage]) for move in moves}
    slowdown = 1.0 + links.interference
    stalls: list[tuple[str, int, int, float]] = []
    step_us = compute_us = stall_us = 0.0
    for phase, times, events, copy_us in (
        ("forward", times_fw, out, out_us),
        ("backward", times_bw, into, in_us),
    ):
        clock = Clock(slowdown)
        _run(clock, times, sorted(events, key=_when), copy_us, phase, stalls)
        step_us += clock.now
        stall_us += clock.stall_us
        compute_us += sum(times)
    return Timing(step_us, compute_us, stall_us, tuple(stalls))


def _when(event: Event) -> tuple[int, int]:
    return event[:2]


def _run(
    clock: Clock,
    times: Sequence[float],
    events: Iterable[Event],
    copy_us: Mapping[int, float],
    phase: str,
    stalls: list[tuple[str, int, int, float]],
) -> None:
    done = [0.0, *accumulate(times)]
    ends: dict[int, float] = {}
    at = 0
    for position, is_wait, s in events:
        if position > at:
            clock.compute(done[position] - done[at])
            at = position
        if not is_wait:
            ends[s] = clock.copy(copy_us[s])
        elif (stalled := clock.wait(ends[s])) > 0.0:
            stalls.append((phase, position, s, stalled))
    clock.compute(done[-1] - done[at])
