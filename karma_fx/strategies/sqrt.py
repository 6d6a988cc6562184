"""sqrt: checkpoints every sqrt(n)-th block, and recomputes between them.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, arXiv 1604.06174. Of the numbers
of segments around sqrt(n) the fastest that fits is taken.
"""

from __future__ import annotations

from math import isqrt

from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.checkpoint import storages_of_block
from karma_fx.strategies.decision import Decision, Outcome, better, evaluate


def crossing(problem: Problem, last: int) -> frozenset[int]:
    """Activations that blocks up to ``last`` make and later blocks' forward reads."""
    found: set[int] = set()
    for i in problem.forward_ops:
        if problem.ops[i].block > last:
            for s in problem.ops[i].touches:
                storage = problem.storages[s]
                if (
                    storage.root >= 0
                    and storage.savable
                    and problem.ops[storage.root].block <= last
                ):
                    found.add(s)
    return frozenset(found)


def sqrt(problem: Problem, links: Links, budget_bytes: int) -> Outcome:
    n = problem.num_blocks
    outcomes = []
    for length in sorted({max(1, isqrt(n) + d) for d in (-1, 0, 1, 2)}):
        saved = storages_of_block(problem, n - 1)
        for last in range(length - 1, n - 1, length):
            saved |= crossing(problem, last)
        outcomes.append(evaluate(problem, Decision(saved), links, budget_bytes))
    best = outcomes[0]
    for outcome in outcomes[1:]:
        best = better(best, outcome, budget_bytes)
    return best
