"""Near memory, operation by operation, for a sequence and a set of offloaded storages."""

from __future__ import annotations

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
    made, last_fw = _spans(problem, seq.forward)
    first_bw, last_bw = _spans(problem, seq.backward)
    ops, storages = problem.ops, problem.storages
    n_fw, n_bw = len(seq.forward), len(seq.backward)
    forward = np.zeros(n_fw + 2, dtype=np.int64)
    backward = np.zeros(n_bw + 2, dtype=np.int64)
    rng_bytes = problem.rng_bytes * sum(1 for j in seq.recomputed if ops[j].seeded)
    forward[0] = problem.base_bytes + rng_bytes
    backward[0] = problem.base_bytes + problem.tangent_bytes + rng_bytes

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
    return Liveness(
        _curve(problem, forward, seq.forward),
        _curve(problem, backward, seq.backward),
        made,
        last_fw,
        first_bw,
    )


def _spans(problem: Problem, order: tuple[int, ...]) -> tuple[dict[int, int], dict[int, int]]:
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
