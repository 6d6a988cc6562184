"""Near memory, operation by operation, for a sequence and a set of offloaded storages."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from karma_fx.planner.problem import Problem
from karma_fx.planner.sequence import Sequence

Curve = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Liveness:
    """Near bytes during each position of forward and of backward, and one more for its end.

    The curves count every storage but the stretches that the schedule decides: an offloaded storage
    counts from its making to its last use in forward (``last_forward``), and from its first to its
    last use in backward (``first_backward``).
    """

    forward: Curve
    backward: Curve
    made: dict[int, int]
    last_forward: dict[int, int]
    first_backward: dict[int, int]


def liveness(problem: Problem, seq: Sequence, offloaded: frozenset[int]) -> Liveness:
    """Walk ``seq`` once. O(operations)."""
    made, last_fw = spans(problem, seq.forward)
    first_bw, last_bw = spans(problem, seq.backward)
    storages = problem.storages
    n_fw, n_bw = len(seq.forward), len(seq.backward)
    forward = np.zeros(n_fw + 2, dtype=np.int64)
    backward = np.zeros(n_bw + 2, dtype=np.int64)
    forward[0] = problem.base_bytes
    backward[0] = problem.base_bytes + problem.tangent_bytes
    for draw, replay in _replays(problem, seq):
        forward[draw] += problem.rng_bytes
        backward[0] += problem.rng_bytes
        backward[replay] += problem.rng_bytes  # torch keeps the present state aside meanwhile
        backward[replay + 1] -= 2 * problem.rng_bytes

    for s, start in made.items():
        storage = storages[s]
        if storage.root < 0:
            continue
        stays = storage.pinned or (s in seq.saved and s not in offloaded)
        forward[start] += storage.nbytes
        forward[n_fw + 1 if stays else last_fw[s] + 1] -= storage.nbytes
        if storage.pinned:
            backward[0] += storage.nbytes
    for s, first in first_bw.items():
        storage = storages[s]
        if storage.root < 0 or (storage.pinned and s in made):
            continue
        start = 0 if s in seq.saved and s not in offloaded else first
        stop = n_bw + 1 if s in problem.gradients else last_bw[s] + 1
        backward[start] += storage.nbytes
        backward[stop] -= storage.nbytes
    for start, stop, nbytes in _second_copies(problem, seq):
        backward[start] += nbytes
        backward[stop] -= nbytes
    return Liveness(
        _curve(problem, forward, seq.forward),
        _curve(problem, backward, seq.backward),
        made,
        last_fw,
        first_bw,
    )


def _replays(problem: Problem, seq: Sequence) -> list[tuple[int, int]]:
    """Positions (in forward, in backward) of the random operations that run twice."""
    seeded = [j for j in seq.recomputed if problem.ops[j].seeded]
    if not seeded:
        return []
    again = {j: position for position, j in enumerate(seq.backward)}
    return [(bisect_left(seq.forward, j), again[j]) for j in seeded]


def _second_copies(problem: Problem, seq: Sequence) -> list[tuple[int, int, int]]:
    """An operation with several outputs that is recomputed for one of them makes the others again,
    also those that were saved; they live until its last output has been taken out of its tuple."""
    ops = problem.ops
    twice = {
        j: sum(problem.storages[s].nbytes for s in ops[j].makes if s in seq.saved)
        for j in seq.recomputed
    }
    twice = {j: nbytes for j, nbytes in twice.items() if nbytes}
    spans: dict[int, tuple[int, int]] = {}
    for position, i in enumerate(seq.backward if twice else ()):
        for j in (i, *ops[i].inputs):
            if j in twice:
                spans[j] = (spans.get(j, (position, 0))[0], position + 1)
    return [(start, stop, twice[j]) for j, (start, stop) in spans.items()]


def spans(problem: Problem, order: tuple[int, ...]) -> tuple[dict[int, int], dict[int, int]]:
    """First and last position at which each storage is touched."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    ops = problem.ops
    for position, i in enumerate(order):
        for s in ops[i].touches:
            if s not in first:
                first[s] = position
            last[s] = position
    return first, last


def _curve(problem: Problem, delta: Curve, order: tuple[int, ...]) -> Curve:
    curve = np.cumsum(delta)[:-1]
    if order:
        ops = problem.ops
        curve[:-1] += np.fromiter((ops[i].workspace_bytes for i in order), np.int64, len(order))
    return curve
