"""A lower bound on the step time under a budget, by linear programming (HiGHS).

The relaxation of the schedule of ``docs/planner.md``. Forward and backward are cut into steps (one
a block). Variables:

    x[t]       share of saved tensor t that crosses from forward to backward
    f[t]       share of it that goes far meanwhile
    p[t, g]    share of it that is back by backward step g
    w[j, g]    share of forward operation j that is run again by backward step g; r[j] in the end
    out, in    bytes that move in each step
    again[g]   recompute time, and stall[...] time without compute, in each step

    minimise    compute + sum(again) + sum(stall)
    subject to  hand[j, g] >= 1                   for what step g of backward reads
                hand[i, g] >= w[j, g]             for every input i of operation j
                bytes out by a step <= sum of f * bytes of what is made by then
                bytes in by step g >= sum of p[., g] * bytes
                copies of a step fit its duration at the link's rate
                near bytes <= budget              at the fullest position of each step
    where       hand[j, g] = x[t] - f[t] + p[t, g] + w[j, g],  t being what operation j makes

What is run again, and what is back, is near from then to its use. ``p`` and ``w`` are told apart
for a window of steps before the use only, and cost no memory before it.

Everything that is left out (the order within a step, whole tensors, latencies) could only make a
plan slower, so no plan of this planner beats the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

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

WINDOW, MOST_SHARES = 8, 30_000
"""For so many steps before its use, what is run again is counted as near; for fewer where the
program would have more than so many shares."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The LP's optimum: shares by storage (``saved``, and of it ``far``) and by operation
    (``again``). ``step_us`` is infinite when not even the LP fits."""

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
    guide to a plan where memory is tight, but no bound (a plan may recompute it later)."""
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
        self.most_far = 1.0 if far else 0.0
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
        self._moves()
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
            {t: float(v[i]) for t, i in self.f.items()},
        )

    def _variables(self) -> None:
        problem, n = self.problem, self.problem.num_blocks
        ops, storages = problem.ops, problem.storages
        self.use = self._use_steps()
        self.window = max(1, min(WINDOW, MOST_SHARES // max(1, len(self.use))))
        self.x: dict[int, int] = {}
        self.f: dict[int, int] = {}
        self.p: dict[int, list[int]] = {}
        for t in self.tensors:
            (self.x[t],) = self._new(1, upper=1.0)
            if self.most_far and storages[t].movable and not storages[t].pinned:
                (self.f[t],) = self._new(1, upper=1.0)
                self.p[t] = self._new(min(self.window, self.use[storages[t].root]) + 1)
        self.r: dict[int, int] = {}
        self.w: dict[int, list[int]] = {}
        for j in problem.forward_ops:
            if ops[j].recomputable:
                self.w[j] = self._new(min(self.window, self.use[j]), upper=1.0)
                (self.r[j],) = self._new(1, ops[j].time_us / MICROS, 1.0)
                self.w[j].append(self.r[j])
        self.out, self.into, self.again = self._new(n), self._new(n), self._new(n)
        self.stall = self._new(2 * n, cost=1.0)

    def _use_steps(self) -> dict[int, int]:
        """Forward operation -> the backward step that first reads it, or its block's."""
        problem, last = self.problem, self.problem.num_blocks - 1
        self.read: dict[int, int] = {}
        for at, i in enumerate(self.seq.backward):
            for j in () if problem.ops[i].forward else problem.forward_inputs[i]:
                self.read[j] = min(self.read.get(j, last), self.step_bw[at])
        uses = {j: self.read.get(j, last - problem.ops[j].block) for j in problem.forward_ops}
        for t in self.tensors:
            root, first = problem.storages[t].root, self.live.first_backward.get(t)
            if first is not None:
                uses[root] = min(uses[root], self.step_bw[first])
        return uses

    def _by(self, shares: list[int], j: int, step: int) -> int:
        """Of the variables of ``j``'s window that for ``step``; the first for all steps before."""
        return shares[max(0, min(0, step - self.use[j]) + len(shares) - 1)]

    def _at_hand(self, j: int, step: int) -> list[tuple[int, float]]:
        """The terms whose sum says which share of operation ``j``'s output is at hand by backward
        step ``step``."""
        terms = [(self._by(self.w[j], j, step), -1.0)] if j in self.w else []
        t = self.problem.root_storage.get(j)
        if t is None and not terms:
            t = next((s for s in self.problem.ops[j].touches if s in self.x), None)
        if t is not None and t in self.x:
            terms.append((self.x[t], -1.0))
            root = self.problem.storages[t].root
            if t in self.f and step <= self.use[root]:
                terms += [(self.f[t], 1.0), (self._by(self.p[t], root, step), -1.0)]
        return terms

    def _needs(self) -> None:
        ops, never = self.problem.ops, self.problem.num_blocks
        read = {j: never for j in self.problem.backward_outputs if ops[j].forward} | self.read
        for j in sorted(read):
            self.rows.add(self._at_hand(j, read[j]), -1.0)
        for t, back in self.p.items():
            self.rows.add([(self.f[t], 1.0), (self.x[t], -1.0)], 0.0)
            for earlier, later in pairwise([*back, self.f[t]]):
                self.rows.add([(earlier, 1.0), (later, -1.0)], 0.0)
        for j, shares in self.w.items():
            for earlier, later in pairwise(shares):
                self.rows.add([(earlier, 1.0), (later, -1.0)], 0.0)
            for ago, variable in enumerate(reversed(shares)):
                for i in ops[j].inputs:
                    self.rows.add([*self._at_hand(i, self.use[j] - ago), (variable, 1.0)], 0.0)

    def _durations(self) -> None:
        """Copies fit their step; recompute fills backward steps."""
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
            terms = [(self.out[step], out_ms), (self.stall[step], -1.0)]
            self.rows.add(terms, self.compute_fw[step] / MICROS)
            terms = [(self.into[step], in_ms), (self.stall[n + step], -1.0)]
            self.rows.add([*terms, (self.again[step], -1.0)], self.compute_bw[step] / MICROS)
        again = [(variable, self.cost[variable]) for variable in self.r.values()]
        self.rows.add([*((v, 1.0) for v in self.again), *((v, -c) for v, c in again)], 0.0)

    def _moves(self) -> None:
        """What is out by a step was made by then; what is back by a step came in by then."""
        problem, storages = self.problem, self.problem.storages
        block = {t: problem.ops[storages[t].root].block for t in self.f}
        for step in range(problem.num_blocks):
            made = [t for t in self.f if block[t] <= step]
            sent = [(self.f[t], -storages[t].nbytes / BYTES) for t in made]
            self.rows.add([*((v, 1.0) for v in self.out[: step + 1]), *sent], 0.0)
            came = [(v, -1.0) for v in self.into[: step + 1]]
            self.rows.add([*self._window(self.p, step), *came], 0.0)

    def _window(self, shares: dict[int, list[int]], step: int) -> list[tuple[int, float]]:
        """Megabytes of tensors by their share at ``step``; nothing before a tensor's window."""
        storages = self.problem.storages
        terms: list[tuple[int, float]] = []
        for t, own in shares.items():
            use = self.use[storages[t].root]
            if step > use - len(own):
                terms.append((self._by(own, storages[t].root, step), storages[t].nbytes / BYTES))
        return terms

    def _memory(self) -> None:
        """Near bytes at the fullest position of each step, and at the start of backward."""
        live, n, storages = self.live, self.problem.num_blocks, self.problem.storages
        for at in _fullest(live.forward[:-1], self.step_fw, n):
            dead = [
                (self.x[t], storages[t].nbytes / BYTES)
                for t in self.tensors
                if live.last_forward.get(t, at) < at and not storages[t].pinned
            ]
            gone = [(v, -1.0) for v in self.out[: self.step_fw[at] + 1]]
            self.rows.add([*dead, *gone], (self.budget - float(live.forward[at])) / BYTES)
        for at in {0, *_fullest(live.backward[:-1], self.step_bw, n)} if self.step_bw else ():
            waiting = [
                (self.x[t], storages[t].nbytes / BYTES)
                for t in self.tensors
                if self._waits(t, at) and not storages[t].pinned
            ]
            done = self.step_bw[at] + self.chains  # steps whose copies and recompute are counted
            gone = [(v, -1.0) for v in self.out]
            back = [(v, 1.0) for v in self.into[:done]]
            again = {
                t: self.w[storages[t].root]
                for t, first in live.first_backward.items()
                if first > at and t in self.x and storages[t].root in self.w
            }
            room = (self.budget - float(live.backward[at])) / BYTES
            self.rows.add([*waiting, *gone, *back, *self._window(again, done - 1)], room)

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
