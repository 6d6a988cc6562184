"""A lower bound on the step time under a budget, by linear programming (HiGHS).

The relaxation of the schedule of ``docs/planner.md``. Forward and backward are cut into steps (one
a block). Variables:

    x[t]       share of saved tensor t that crosses from forward to backward
    r[j]       share of forward operation j that is run again
    out[b, f]  bytes of block b's saved tensors that go far during forward step f >= b
    in[b, g]   bytes of them that come back during the g-th backward step
    again[g]   recompute time, and stall[...] time without compute, in each step

    minimise    compute + sum(again) + sum(stall)
    subject to  x[t] + r[root of t] >= 1          for what backward reads
                x[u] + r[root of u] >= r[j]       for what operation j reads
                copies of a step fit its duration at the link's rate
                near bytes <= budget              at the fullest position of each step
                what went far is back by its use

Everything that is left out (the order within a step, whole tensors, latencies, what a recomputed
chain holds) could only make a plan slower, so no plan of this planner beats the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from karma_fx.planner.links import Links
from karma_fx.planner.memory import Curve, liveness
from karma_fx.planner.problem import Problem
from karma_fx.planner.sequence import Sequence, make_sequence

BYTES = 1e6
MICROS = 1e3
"""The LP counts megabytes and milliseconds, so that its coefficients are of like size."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The LP's optimum. ``saved`` and ``again`` are shares, by storage and operation; ``far`` the
    bytes of each block that go far. ``step_us`` is infinite when not even the LP fits."""

    step_us: float
    saved: dict[int, float] = field(default_factory=dict)
    again: dict[int, float] = field(default_factory=dict)
    far: dict[int, float] = field(default_factory=dict)


def relax(
    problem: Problem,
    links: Links,
    budget_bytes: int,
    *,
    far: bool = True,
    whole: bool = False,
    chains: bool = False,
) -> Relaxation:
    """Solve the relaxation. Deterministic. Without ``far``, nothing is offloaded; with ``whole``,
    tensors and operations are not divided (a MILP, to within 1%, in at most ten seconds). With
    ``chains``, what a block recomputes is counted as near throughout the block's backward: a better
    guide to a plan where memory is tight, but no bound."""
    return _Program(problem, links, budget_bytes, far, chains).solve(whole)


class _Rows:
    """Inequalities ``a @ v <= b`` as triplets."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.cols: list[int] = []
        self.values: list[float] = []
        self.limits: list[float] = []

    def add(self, terms: list[tuple[int, float]], limit: float) -> None:
        row = len(self.limits)
        for column, value in terms:
            self.rows.append(row)
            self.cols.append(column)
            self.values.append(value)
        self.limits.append(limit)


class _Program:
    def __init__(
        self, problem: Problem, links: Links, budget_bytes: int, far: bool, chains: bool
    ) -> None:
        self.problem, self.links, self.budget = problem, links, budget_bytes
        self.chains = chains
        self.most_far = np.inf if far else 0.0
        self.seq = make_sequence(problem, problem.saved_by_default)
        movable = frozenset(s for s in problem.root_storage.values() if _in_forward(problem, s))
        self.tensors = sorted(movable)
        self.live = liveness(problem, self.seq, movable)
        self.rows = _Rows()
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.step_fw, self.step_bw = _steps(problem, self.seq)

    def _new(self, count: int, cost: float = 0.0, upper: float = np.inf) -> list[int]:
        start = len(self.cost)
        self.cost += [cost] * count
        self.upper += [upper] * count
        return list(range(start, start + count))

    def solve(self, whole: bool) -> Relaxation:
        self._variables()
        self._needs()
        self._durations()
        self._memory()
        rows = self.rows
        shape = (len(rows.limits), len(self.cost))
        matrix = coo_array((rows.values, (rows.rows, rows.cols)), shape=shape).tocsr()
        bounds = np.column_stack([np.zeros(len(self.upper)), self.upper])
        integral = np.zeros(len(self.cost))
        integral[[*self.x.values(), *self.r.values()]] = whole
        found = linprog(
            self.cost,
            A_ub=matrix,
            b_ub=rows.limits,
            bounds=bounds,
            method="highs",
            integrality=integral if whole else None,
            options={"mip_rel_gap": 0.01, "time_limit": 10.0} if whole else {},
        )
        if found.x is None:
            return Relaxation(float("inf"))
        v = found.x
        return Relaxation(
            sum(self.compute_fw) + sum(self.compute_bw) + float(found.fun) * MICROS,
            {t: float(v[i]) for t, i in self.x.items()},
            {j: float(v[i]) for j, i in self.r.items()},
            {b: float(sum(v[i] for i in out)) * BYTES for b, out in enumerate(self.out)},
        )

    def _variables(self) -> None:
        problem, n = self.problem, self.problem.num_blocks
        self.x = dict(zip(self.tensors, self._new(len(self.tensors), upper=1.0), strict=True))
        self.r: dict[int, int] = {}
        for j in problem.forward_ops:
            if problem.ops[j].recomputable:
                (self.r[j],) = self._new(1, problem.ops[j].time_us / MICROS, 1.0)
        self.out = [self._new(n - b, upper=self.most_far) for b in range(n)]  # out[b][f - b]
        self.into = [self._new(n) for _ in range(n)]  # into[b][g]
        self.again, self.stall = self._new(n), self._new(2 * n, cost=1.0)

    def _at_hand(self, j: int) -> list[tuple[int, float]]:
        """The terms whose sum says which share of operation ``j``'s output backward can have."""
        terms = [(self.r[j], -1.0)] if j in self.r else []
        s = self.problem.root_storage.get(j)
        if s is None and not terms:
            s = next((t for t in self.problem.ops[j].touches if t in self.x), None)
        if s is not None and s in self.x:
            terms.append((self.x[s], -1.0))
        return terms

    def _needs(self) -> None:
        problem = self.problem
        read = {j for i in problem.backward_ops for j in problem.ops[i].inputs}
        read.update(problem.backward_outputs)
        for j in sorted(j for j in read if problem.ops[j].forward):
            self.rows.add(self._at_hand(j), -1.0)
        for j, variable in self.r.items():
            for i in problem.ops[j].inputs:
                self.rows.add([*self._at_hand(i), (variable, 1.0)], 0.0)

    def _durations(self) -> None:
        """Copies fit their step; recompute fills backward steps; only stored bytes go far."""
        problem, n = self.problem, self.problem.num_blocks
        self.compute_fw, self.compute_bw = [0.0] * n, [0.0] * n
        required = {i for i in problem.forward_ops if problem.ops[i].required}
        always = problem.closure(required.union(problem.forward_outputs))
        for at, j in enumerate(self.seq.forward):
            self.compute_fw[self.step_fw[at]] += problem.ops[j].time_us if j in always else 0.0
        for at, j in enumerate(self.seq.backward):
            own = not problem.ops[j].forward  # those run again are counted by r
            self.compute_bw[self.step_bw[at]] += problem.ops[j].time_us if own else 0.0
        out_ms = BYTES / self.links.out_bytes_per_us / MICROS
        in_ms = BYTES / self.links.in_bytes_per_us / MICROS
        for step in range(n):
            terms = [(self.out[b][step - b], out_ms) for b in range(step + 1)]
            self.rows.add([*terms, (self.stall[step], -1.0)], self.compute_fw[step] / MICROS)
            terms = [(self.into[b][step], in_ms) for b in range(n)]
            terms += [(self.stall[n + step], -1.0), (self.again[step], -1.0)]
            self.rows.add(terms, self.compute_bw[step] / MICROS)
        again = [(variable, self.cost[variable]) for variable in self.r.values()]
        self.rows.add([*((v, 1.0) for v in self.again), *((v, -c) for v, c in again)], 0.0)
        for b in range(n):
            self._far_block(b)

    def _far_block(self, b: int) -> None:
        """What block ``b`` sends far was saved, and is back by its last tensor's first use."""
        problem = self.problem
        own = [t for t in self.tensors if problem.ops[problem.storages[t].root].block == b]
        own = [t for t in own if problem.storages[t].movable and not problem.storages[t].pinned]
        out = [(v, 1.0) for v in self.out[b]]
        kept = [(self.x[t], -problem.storages[t].nbytes / BYTES) for t in own]
        self.rows.add([*out, *kept], 0.0)
        first = self.live.first_backward
        uses = [self.step_bw[first[t]] for t in own if t in first]
        # Of a tensor that only recompute reads it is not known when it must be back.
        last = problem.num_blocks - 1 if len(uses) < len(own) else max(uses, default=0)
        self.rows.add([*out, *((self.into[b][g], -1.0) for g in range(last + 1))], 0.0)
        self.rows.add([*((v, -1.0) for v in self.out[b]), *((v, 1.0) for v in self.into[b])], 0.0)

    def _memory(self) -> None:
        """Near bytes at the fullest position of each step, and at the start of backward."""
        problem, live, n = self.problem, self.live, self.problem.num_blocks
        storages = problem.storages
        for at in _fullest(live.forward[:-1], self.step_fw, n):
            dead = [
                (self.x[t], storages[t].nbytes / BYTES)
                for t in self.tensors
                if live.last_forward.get(t, at) < at and not storages[t].pinned
            ]
            step = self.step_fw[at]
            gone = [(v, -1.0) for b in range(step + 1) for v in self.out[b][: step - b + 1]]
            self.rows.add([*dead, *gone], (self.budget - float(live.forward[at])) / BYTES)
        for at in {0, *_fullest(live.backward[:-1], self.step_bw, n)} if self.step_bw else ():
            waiting = [
                (self.x[t], storages[t].nbytes / BYTES)
                for t in self.tensors
                if self._waits(t, at) and not storages[t].pinned
            ]
            if self.chains:
                waiting += self._recomputed_around(at)
            gone = [(v, -1.0) for b in range(n) for v in self.out[b]]
            back = [(v, 1.0) for b in range(n) for v in self.into[b][: self.step_bw[at]]]
            room = (self.budget - float(live.backward[at])) / BYTES
            self.rows.add([*waiting, *gone, *back], room)

    def _recomputed_around(self, at: int) -> list[tuple[int, float]]:
        """Tensors of the present block that are needed later than ``at``, if recomputed."""
        storages, ops = self.problem.storages, self.problem.ops
        block = self.problem.num_blocks - 1 - self.step_bw[at]
        roots = {t: storages[t].root for t, first in self.live.first_backward.items() if first > at}
        return [
            (self.r[root], storages[t].nbytes / BYTES)
            for t, root in roots.items()
            if t in self.x and ops[root].block == block and root in self.r
        ]

    def _waits(self, t: int, at: int) -> bool:
        """True when a saved ``t`` lies idle at position ``at`` of backward."""
        first = self.live.first_backward.get(t)
        return at == 0 if first is None else first > at


def _in_forward(problem: Problem, s: int) -> bool:
    root = problem.storages[s].root
    return root >= 0 and problem.ops[root].forward and problem.storages[s].nbytes > 0


def _steps(problem: Problem, seq: Sequence) -> tuple[list[int], list[int]]:
    """The step of every position: the block in forward; backward counts the blocks from the end."""
    last = problem.num_blocks - 1
    forward = [problem.ops[j].block for j in seq.forward]
    backward, current = [], last
    for j in seq.backward:
        if not problem.ops[j].forward:
            current = min(current, problem.ops[j].block)
        backward.append(last - current)
    return forward, backward


def _fullest(curve: Curve, steps: list[int], count: int) -> list[int]:
    """The position with the most bytes of each step that has any."""
    best: dict[int, int] = {}
    for at, step in enumerate(steps):
        if step not in best or curve[at] > curve[best[step]]:
            best[step] = at
    return sorted(best.values())
