"""Where transfers start and end, given which storages are offloaded.

Forward is swept in time. A storage's copy out starts as soon as it is made, one after the other;
its near bytes are freed where the copy is predicted to have ended, or, when the budget would be
exceeded before that, right there, and compute waits (a stall). Backward is the mirror image: swept
from its end, a copy in "starts" at the storage's first use and "ends" where it must be issued, so
every prefetch is issued as late as the link allows, or later when the budget demands it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from karma_fx.planner.links import Links
from karma_fx.planner.memory import Curve, liveness
from karma_fx.planner.problem import Problem
from karma_fx.planner.sequence import Sequence

SLACK = 1.25
"""Where the budget leaves room, a transfer is given this many times its predicted time before it is
waited for, so that a link a little slower than predicted does not stall compute."""


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
class Placement:
    """A placed schedule and its prediction."""

    moves: tuple[Move, ...]
    step_us: float
    compute_us: float
    stall_us: float
    recompute_us: float
    peak_bytes: int
    moved_bytes: int
    forward_curve: Curve
    backward_curve: Curve

    def fits(self, budget_bytes: int) -> bool:
        return self.peak_bytes <= budget_bytes


def place(
    problem: Problem, seq: Sequence, offloaded: frozenset[int], links: Links, budget_bytes: int
) -> Placement:
    """Schedule ``offloaded`` (a subset of ``seq.saved``) so as to stay within ``budget_bytes``.

    When it can't be done the placement with the lowest peak is returned; ask ``fits``.
    """
    live = liveness(problem, seq, offloaded)
    moved = tuple(s for s in offloaded if s in seq.saved)
    sizes = {s: problem.storages[s].nbytes for s in moved}
    times_fw = [problem.ops[i].time_us for i in seq.forward]
    times_bw = [problem.ops[i].time_us for i in seq.backward]

    # forward runs in the joint graph's order, so a root's position is found by bisection
    owned = {s: bisect_left(seq.forward, problem.storages[s].root) for s in moved}
    starts = sorted((owned[s], live.last_forward[s], s) for s in moved)
    fw = _Sweep(times_fw, live.forward, starts, sizes, links.out_us, links, budget_bytes).run()
    n_bw = len(seq.backward)
    ends = sorted((n_bw - 1 - live.first_backward[s],) * 2 + (s,) for s in moved)
    mirrored = np.append(live.backward[-2::-1], 0)
    bw = _Sweep(times_bw[::-1], mirrored, ends, sizes, links.in_us, links, budget_bytes).run()

    moves = tuple(
        Move(s, owned[s] + 1, fw.released[s], n_bw - bw.released[s], live.first_backward[s])
        for _, _, s in starts
    )
    compute_us = sum(times_fw) + sum(times_bw)
    return Placement(
        moves,
        fw.now + bw.now,
        compute_us,
        fw.stall_us + bw.stall_us,
        sum(problem.ops[j].time_us for j in seq.recomputed),
        max(int(fw.curve.max()), int(bw.curve.max()), int(live.backward[-1])),
        2 * sum(sizes.values()),
        fw.curve,
        bw.curve[-2::-1],
    )


@dataclass(frozen=True, slots=True)
class _Copy:
    end: float
    safe_end: float
    last: int  # the last position at which compute touches the storage
    storage: int


class _Sweep:
    """One direction: a compute queue, a FIFO link, and bytes that linger until their copy ends."""

    def __init__(
        self,
        times_us: list[float],
        curve: Curve,
        starts: list[tuple[int, int, int]],
        sizes: dict[int, int],
        copy_us: Callable[[int], float],
        links: Links,
        budget_bytes: int,
    ) -> None:
        self.times_us, self.curve, self.sizes = times_us, curve.copy(), sizes
        self.copy_us, self.budget_bytes = copy_us, budget_bytes
        self.slowdown = 1.0 + links.interference
        self.starts = deque(starts)
        self.pending: deque[_Copy] = deque()
        self.released: dict[int, int] = {}
        self.now = self.stall_us = self.link_free = self.link_safe = 0.0

    def run(self) -> _Sweep:
        bases = self.curve.tolist()
        for position, time_us in enumerate(self.times_us):
            self._release(position, bases[position])
            busy = self.link_free > self.now
            self.now += time_us * (self.slowdown if busy else 1.0)
            while self.starts and self.starts[0][0] <= position:
                self._start()
        self._drain(len(self.times_us))
        return self

    def _start(self) -> None:
        _, last, s = self.starts.popleft()
        took_us = self.copy_us(self.sizes[s])
        self.link_free = max(self.now, self.link_free) + took_us
        self.link_safe = max(self.now, self.link_safe) + SLACK * took_us
        self.pending.append(_Copy(self.link_free, self.link_safe, last, s))

    def _release(self, position: int, base: int) -> None:
        """Free what has been copied; wait for more where the budget asks for it."""
        lingering = sum(self.sizes[c.storage] for c in self.pending if c.last < position)
        keep: deque[_Copy] = deque()
        for copy in self.pending:
            over = base + lingering > self.budget_bytes
            if copy.last < position and (over or copy.safe_end <= self.now):
                self._wait(copy.end)
                self.released[copy.storage] = position
                lingering -= self.sizes[copy.storage]
            else:
                keep.append(copy)
        self.pending = keep
        self.curve[position] = base + lingering

    def _wait(self, end: float) -> None:
        if end > self.now:
            self.stall_us += end - self.now
            self.now = end

    def _drain(self, position: int) -> None:
        self.curve[position] += sum(self.sizes[c.storage] for c in self.pending)
        for copy in self.pending:
            self._wait(copy.end)
            self.released[copy.storage] = position
        self.pending.clear()
