"""Where transfers start and end, given which storages are offloaded.

Forward is swept in time. A storage's copy out starts as soon as it is made, one after the other;
its near bytes are freed where the copy is predicted to have ended, or, when the budget would be
exceeded before that, right there, and compute waits (a stall). Backward is the mirror image: swept
from its end, a copy in "starts" at the storage's first use and "ends" where it must be issued, so
every prefetch is issued as late as the link allows, or later when the budget demands it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from karma_fx.planner.links import Links
from karma_fx.planner.memory import Curve, Liveness, liveness
from karma_fx.planner.problem import Problem
from karma_fx.planner.sequence import Sequence
from karma_fx.planner.simulate import Clock, Move, Timing, simulate

SLACK = 1.25
"""Where the budget leaves room, a transfer is given this many times its predicted time before it is
waited for, so that a link a little slower than predicted does not stall compute."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A placed schedule and its prediction."""

    moves: tuple[Move, ...]
    timing: Timing
    recompute_us: float
    peak_bytes: int
    moved_bytes: int
    forward_curve: Curve
    backward_curve: Curve

    @property
    def step_us(self) -> float:
        return self.timing.step_us

    def fits(self, budget_bytes: int) -> bool:
        return self.peak_bytes <= budget_bytes


def place(
    problem: Problem, seq: Sequence, offloaded: frozenset[int], links: Links, budget_bytes: int
) -> Placement:
    """Schedule ``offloaded`` (a subset of ``seq.saved``) so as to stay within ``budget_bytes``.

    When it can't be done the placement with the lowest peak is returned; ask ``fits``.
    """
    live = liveness(problem, seq, offloaded)
    moved = [s for s in offloaded if s in seq.saved]
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
    return placement_of(problem, seq, moves, live, sizes, links)


def placement_of(
    problem: Problem,
    seq: Sequence,
    moves: tuple[Move, ...],
    live: Liveness,
    sizes: dict[int, int],
    links: Links,
) -> Placement:
    """The prediction for given ``moves`` (legal ones)."""
    forward_curve, backward_curve = curves(live, moves, sizes)
    times_fw = [problem.ops[i].time_us for i in seq.forward]
    times_bw = [problem.ops[i].time_us for i in seq.backward]
    return Placement(
        moves,
        simulate(times_fw, times_bw, moves, sizes, links),
        sum(problem.ops[j].time_us for j in seq.recomputed),
        max(int(forward_curve.max()), int(backward_curve.max())),
        2 * sum(sizes.values()),
        forward_curve,
        backward_curve,
    )


def curves(live: Liveness, moves: tuple[Move, ...], sizes: dict[int, int]) -> tuple[Curve, Curve]:
    """Near bytes at each position of forward and of backward, and at their ends, transfers
    included."""
    forward, backward = np.diff(live.forward, prepend=0), np.diff(live.backward, prepend=0)
    for move in moves:
        nbytes, after = sizes[move.storage], live.last_forward[move.storage] + 1
        if move.wait_offload > after:
            forward[after] += nbytes
            if move.wait_offload < len(forward) - 1:
                forward[move.wait_offload] -= nbytes
        backward[move.prefetch] += nbytes
        backward[live.first_backward[move.storage]] -= nbytes
    return np.cumsum(forward), np.cumsum(backward)


class _Sweep:
    """One direction: a compute queue, a FIFO link, and bytes that linger until their copy ends.

    ``starts`` are (position after which the copy starts, last position at which compute touches the
    storage, storage), by position. ``released`` tells where each storage's bytes are freed.
    """

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
        self.times_us, self.bases, self.sizes = times_us, curve.tolist(), sizes
        self.starts, self.copy_us, self.budget_bytes = starts, copy_us, budget_bytes
        self.clock = Clock(1.0 + links.interference)
        self.safe = 0.0  # when the link would be free if it were slower by SLACK
        self.lingering: list[tuple[float, int, float]] = []  # (end, storage, safe end), by end
        self.lingering_bytes = 0
        self.enters: defaultdict[int, list[tuple[float, int, float]]] = defaultdict(list)
        self.released: dict[int, int] = {}

    def run(self) -> _Sweep:
        at, starts, n = 0, self.starts, len(self.starts)
        for position, time_us in enumerate(self.times_us):
            if position in self.enters or self.lingering:
                self._release(position)
            self.clock.compute(time_us)
            while at < n and starts[at][0] <= position:
                self._start(*starts[at])
                at += 1
        end = len(self.times_us)
        for entering in self.enters.values():
            self.lingering.extend(entering)
        for copy_end, s, _ in sorted(self.lingering):
            self.clock.wait(copy_end)
            self.released[s] = end
        return self

    def _start(self, position: int, last: int, s: int) -> None:
        took_us = self.copy_us(self.sizes[s])
        end = self.clock.copy(took_us)
        self.safe = max(self.clock.now, self.safe) + SLACK * took_us
        self.enters[max(position, last) + 1].append((end, s, self.safe))

    def _release(self, position: int) -> None:
        """Free what has been copied; wait for more where the budget asks for it."""
        for copy in self.enters.pop(position, ()):
            insort(self.lingering, copy)
            self.lingering_bytes += self.sizes[copy[1]]
        room, at = self.budget_bytes - self.bases[position], 0
        for end, s, safe_end in self.lingering:
            if safe_end > self.clock.now and self.lingering_bytes <= room:
                break
            self.clock.wait(end)
            self.released[s] = position
            self.lingering_bytes -= self.sizes[s]
            at += 1
        del self.lingering[:at]
