"""karma: capacity-based offload and recompute, chosen per saved tensor.

KARMA (Wahib et al., SC'20) swaps only what exceeds capacity, earliest-produced first (it has the
longest window), and recomputes where compute would otherwise wait for the link. Here the unit is
the saved tensor. Candidates to recompute are taken by price (microseconds of recompute per byte);
for every price limit the shortest prefix of the rest, in order of making, is offloaded that fits.
The fastest outcome is then improved by taking single decisions back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.checkpoint import checkpoint
from karma_fx.strategies.decision import Decision, Outcome, better, can_offload, evaluate
from karma_fx.strategies.keep import keep

PRICE_LEVELS = 6
MAX_TRIALS = 150


def karma(problem: Problem, links: Links, budget_bytes: int) -> Outcome:
    best = keep(problem, links, budget_bytes)
    if best.placement.fits(budget_bytes):
        return best
    search = _Search(problem, links, budget_bytes)
    for limit in search.price_limits:
        best = better(best, search.shortest_prefix(limit), budget_bytes)
    best = better(best, checkpoint(problem, links, budget_bytes), budget_bytes)
    return search.improve(best)


@dataclass(frozen=True)
class _Search:
    problem: Problem
    links: Links
    budget_bytes: int

    @cached_property
    def candidates(self) -> tuple[int, ...]:
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

    def try_out(self, saved: frozenset[int], offloaded: frozenset[int]) -> Outcome:
        return evaluate(self.problem, Decision(saved, offloaded), self.links, self.budget_bytes)

    def shortest_prefix(self, limit: float) -> Outcome:
        """Recompute what costs at most ``limit``; offload as few as possible of the others."""
        cheap = frozenset(s for s, price in self.price.items() if price <= limit)
        saved = self.problem.saved_by_default - cheap
        rest = [s for s in self.candidates if s not in cheap]
        low, high = 0, len(rest)
        best = self.try_out(saved, frozenset(rest))
        if not best.placement.fits(self.budget_bytes):
            return best
        while low < high:
            middle = (low + high) // 2
            outcome = self.try_out(saved, frozenset(rest[:middle]))
            if outcome.placement.fits(self.budget_bytes):
                best, high = better(best, outcome, self.budget_bytes), middle
            else:
                low = middle + 1
        return best

    def improve(self, best: Outcome) -> Outcome:
        """Take decisions back one at a time, dearest first, while the step gets faster."""
        if not best.placement.fits(self.budget_bytes):
            return best
        recomputed = self.problem.saved_by_default - best.decision.saved
        dearest = sorted(recomputed, key=lambda s: (-self._recompute_us(s), s))
        for s in dearest[:MAX_TRIALS]:
            saved, offloaded = best.decision.saved | {s}, best.decision.offloaded
            for far in (offloaded, offloaded | {s}):
                best = better(best, self.try_out(saved, far), self.budget_bytes)
        biggest = sorted(best.decision.offloaded, key=lambda s: -self.problem.storages[s].nbytes)
        for s in biggest[:MAX_TRIALS]:
            outcome = self.try_out(best.decision.saved, best.decision.offloaded - {s})
            best = better(best, outcome, self.budget_bytes)
        return best

    def _recompute_us(self, storage: int) -> float:
        return self.price[storage] * self.problem.storages[storage].nbytes
