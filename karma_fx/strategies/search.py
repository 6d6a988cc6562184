"""The moves of karma's search: candidates, roundings of the relaxation, and local improvement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from karma_fx.planner.bound import Relaxation, relax
from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.checkpoint import checkpoint
from karma_fx.strategies.decision import Decision, Outcome, better, can_offload, evaluate
from karma_fx.strategies.repair import repair

PRICE_LEVELS = 6
ROUNDINGS, SHRINK = 6, 0.96
"""Where a rounding does not fit, so many more are tried, each for at most so much less memory."""
GOOD_ENOUGH = 1.002
"""A plan this close to its lower bound is not improved any further."""
WORK = 150_000
"""Local search evaluates this many operations, or twenty outcomes."""


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

    def rounded(self, relaxed: Relaxation, budget_bytes: int, *, chains: bool = False) -> Outcome:
        """The relaxation made whole. Where it does not fit, it is repaired, or that of a smaller
        budget is taken."""
        best, target = self._round(relaxed, budget_bytes), budget_bytes
        outcome = best
        for _ in range(ROUNDINGS):
            if outcome.placement.fits(budget_bytes):
                break
            repaired = repair(self.problem, self.links, outcome, budget_bytes)
            best = better(best, repaired, budget_bytes)
            over = outcome.placement.peak_bytes - budget_bytes
            target = max(target - over, int(target * SHRINK))
            relaxed = relax(self.problem, self.links, target, chains=chains)
            if relaxed.step_us == float("inf"):
                break
            outcome = self._round(relaxed, budget_bytes)
            best = better(best, outcome, budget_bytes)
        return best

    def roundings(self, relaxed: Relaxation, budget_bytes: int) -> Outcome:
        """The better of two: from the bound's relaxation, and from the one that counts chains."""
        best = self.rounded(relaxed, budget_bytes)
        careful = relax(self.problem, self.links, budget_bytes, chains=True)
        if careful.step_us == float("inf"):
            return best
        return better(best, self.rounded(careful, budget_bytes, chains=True), budget_bytes)

    def _round(self, relaxed: Relaxation, budget_bytes: int) -> Outcome:
        storages, ops = self.problem.storages, self.problem.ops
        saved = frozenset(s for s, share in relaxed.saved.items() if share > 0.5)
        far: set[int] = set()
        left = dict(relaxed.far)
        for s in sorted(saved, key=lambda s: storages[s].root):
            block = ops[storages[s].root].block
            if can_offload(self.problem, s) and left[block] > 0.3 * storages[s].nbytes:
                left[block] -= storages[s].nbytes
                far.add(s)
        return self.try_out(saved, frozenset(far), budget_bytes)

    def improve(self, best: Outcome, enough_us: float, budget_bytes: int) -> Outcome:
        """Change one decision at a time, dearest first, while the step gets faster."""
        if not best.placement.fits(budget_bytes):
            return best
        left = self.trials
        while left > 0:
            start = best
            for decision in self._neighbours(best):
                if left <= 0 or best.placement.step_us <= enough_us:
                    return best
                left -= 1
                outcome = evaluate(self.problem, decision, self.links, budget_bytes)
                if outcome.placement.fits(budget_bytes):
                    best = better(best, outcome, budget_bytes)
                    if best is outcome:
                        break
            if best is start:
                return best
        return best

    def _neighbours(self, outcome: Outcome) -> Iterator[Decision]:
        """Decisions that differ in one tensor: first take back what costs time, then trade one
        action for another."""
        saved, far = outcome.decision.saved, outcome.decision.offloaded
        storages = self.problem.storages
        stalls: dict[int, float] = {}
        for _, _, s, stalled_us in outcome.placement.timing.stalls:
            stalls[s] = stalls.get(s, 0.0) + stalled_us
        again = self.problem.saved_by_default - saved
        dearest = sorted(again, key=lambda s: (-self.price[s] * storages[s].nbytes, s))
        stalled = sorted(far, key=lambda s: (-stalls.get(s, 0.0), -storages[s].nbytes, s))
        for s in stalled:
            yield Decision(saved, far - {s})
        for s in dearest:
            yield Decision(saved | {s}, far)
        for s in dearest:
            yield Decision(saved | {s}, far | {s})
        for s in stalled:
            yield Decision(saved - {s}, far - {s})
        kept = sorted(saved - far, key=lambda s: (self.price.get(s, 0.0), s))
        for a in [*dearest, *stalled]:
            for b in kept:
                yield Decision((saved | {a}) - {b}, far - {a})
                yield Decision(saved | {a}, (far - {a}) | {b})
