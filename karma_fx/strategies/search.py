"""The moves of karma's search: candidates and local improvement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.checkpoint import checkpoint
from karma_fx.strategies.decision import Decision, Outcome, better, can_offload, evaluate
from karma_fx.strategies.improve import improve

PRICE_LEVELS = 6
GOOD_ENOUGH = 1.002
"""A plan this close to its lower bound is not improved any further."""
WORK = 500_000
"""From each starting point, local search evaluates this many operations, or twenty outcomes."""


@dataclass(frozen=True)
class Search:
    """All candidates are evaluated by the exact placement. Deterministic."""

    problem: Problem
    links: Links

    @cached_property
    def trials(self) -> int:
        """How many outcomes local search may evaluate."""
        return max(20, min(1000, WORK // max(1, len(self.problem.ops))))

    @cached_property
    def movable(self) -> tuple[int, ...]:
        """Saved tensors that could go far, in the order in which forward makes them."""
        movable = (s for s in self.problem.saved_by_default if can_offload(self.problem, s))
        return tuple(sorted(movable, key=lambda s: self.problem.storages[s].root))

    @cached_property
    def price(self) -> dict[int, float]:
        """Microseconds per byte to recompute each saved tensor, the others being at hand."""
        roots = {self.problem.storages[s].root for s in self.problem.saved_by_default}
        return {s: self._price(s, roots) for s in self.problem.saved_by_default}

    def _price(self, storage: int, roots: set[int]) -> float:
        ops, owner = self.problem.ops, self.problem.storages[storage]
        chain = self.problem.closure([owner.root], stop=lambda i: i in roots and i != owner.root)
        chain = {i for i in chain if i == owner.root or i not in roots}
        if owner.nbytes == 0 or not all(ops[i].recomputable for i in chain):
            return float("inf")
        return sum(ops[i].time_us for i in chain) / owner.nbytes

    @cached_property
    def price_limits(self) -> list[float]:
        """From nothing to all: the byte-weighted quantiles of the finite prices."""
        priced = sorted((p, self.problem.storages[s].nbytes) for s, p in self.price.items())
        priced = [(p, n) for p, n in priced if p < float("inf")]
        total = sum(n for _, n in priced)
        limits, run, step = [-1.0], 0, 1
        for price, nbytes in priced:
            run += nbytes
            if run * PRICE_LEVELS >= step * total:
                limits.append(price)
                step = run * PRICE_LEVELS // max(total, 1) + 1
        return limits

    def try_out(self, saved: frozenset[int], far: frozenset[int], budget_bytes: int) -> Outcome:
        return evaluate(self.problem, Decision(saved, far), self.links, budget_bytes)

    def candidates(self, budget_bytes: int) -> Iterator[Outcome]:
        """Outcomes that do not come from the relaxation."""
        yield checkpoint(self.problem, self.links, budget_bytes)
        for limit in self.price_limits:
            yield self.shortest_prefix(limit, budget_bytes)

    def lowest_peak(self) -> Outcome:
        """The outcome with the smallest peak that the candidates lead to."""
        best = checkpoint(self.problem, self.links, 0)
        best = better(best, self.try_out(best.decision.saved, best.decision.saved, 0), 0)
        for limit in self.price_limits:
            saved = self.problem.saved_by_default - self._cheap(limit)
            best = better(best, self.try_out(saved, saved, 0), 0)
        return best

    def _cheap(self, limit: float) -> frozenset[int]:
        return frozenset(s for s, price in self.price.items() if price <= limit)

    def shortest_prefix(self, limit: float, budget_bytes: int) -> Outcome:
        """Recompute what costs at most ``limit``; offload as few as possible of the others."""
        cheap = self._cheap(limit)
        saved = self.problem.saved_by_default - cheap
        rest = [s for s in self.movable if s not in cheap]
        low, high = 0, len(rest)
        best = self.try_out(saved, frozenset(rest), budget_bytes)
        if not best.placement.fits(budget_bytes):
            return best
        while low < high:
            middle = (low + high) // 2
            outcome = self.try_out(saved, frozenset(rest[:middle]), budget_bytes)
            if outcome.placement.fits(budget_bytes):
                best, high = better(best, outcome, budget_bytes), middle
            else:
                low = middle + 1
        return best

    def improve(self, best: Outcome, enough_us: float, budget_bytes: int) -> Outcome:
        return improve(
            self.problem,
            self.links,
            self.price,
            best,
            budget_bytes,
            enough_us=enough_us,
            trials=self.trials,
        )
