"""knapsack: what torch's ``activation_memory_budget`` does, with a budget in bytes.

torch's partitioner chooses which of the tensors that could be recomputed to save: a 0/1 knapsack
whose weights are bytes and whose values are the time of recompute, each tensor priced alone. Its
budget is a ratio; here the largest ratio whose plan fits is found by bisection.
"""

from __future__ import annotations

import numpy as np

from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.decision import Decision, Outcome, better, evaluate
from karma_fx.strategies.search import Search

_BINS = 1000
_HALVINGS = 8


def best_subset(weights: list[int], values: list[float], capacity: int) -> set[int]:
    """Indices of the 0/1 knapsack's optimum, weights rounded up to ``capacity`` / 1000."""
    unit = max(1, -(-capacity // _BINS))
    bins = capacity // unit
    best = np.zeros(bins + 1)
    taken = np.zeros((len(weights), bins + 1), dtype=bool)
    for i, (weight, value) in enumerate(zip(weights, values, strict=True)):
        need = -(-weight // unit)
        if need <= bins:
            with_it = np.full(bins + 1, -1.0)
            with_it[need:] = best[: bins + 1 - need] + value
            taken[i] = with_it > best
            best = np.maximum(best, with_it)
    chosen, room = set(), bins
    for i in reversed(range(len(weights))):
        if taken[i, room]:
            chosen.add(i)
            room -= -(-weights[i] // unit)
    return chosen


def knapsack(problem: Problem, links: Links, budget_bytes: int) -> Outcome:
    price = Search(problem, links).price
    fixed = frozenset(s for s, p in price.items() if p == float("inf"))
    items = sorted(problem.saved_by_default - fixed)
    weights = [problem.storages[s].nbytes for s in items]
    values = [price[s] * w for s, w in zip(items, weights, strict=True)]
    low, high = 0, sum(weights)

    def outcome_for(capacity: int) -> Outcome:
        chosen = {items[i] for i in best_subset(weights, values, capacity)}
        return evaluate(problem, Decision(fixed | chosen), links, budget_bytes)

    best = better(outcome_for(low), outcome_for(high), budget_bytes)
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        outcome = outcome_for(middle)
        best = better(best, outcome, budget_bytes)
        if outcome.placement.fits(budget_bytes):
            low = middle
        else:
            high = middle
    return best
