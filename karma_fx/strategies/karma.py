"""karma: offload and recompute, chosen per saved tensor, near the optimum.

KARMA (Wahib et al., SC'20) swaps only what exceeds capacity, earliest-produced first (it has the
longest window), and recomputes where compute would otherwise wait for the link. Here the unit is
the saved tensor. Three sources of candidates, then local search on the exact simulator:

1. for every limit on the price of recompute (microseconds a byte), recompute what is cheaper, and
   offload the shortest prefix of the rest, in order of making, that fits;
2. the linear relaxation of ``karma_fx.planner.bound``, rounded, and made to fit;
3. the published strategies that come beside it.

For small graphs plans are made for the rungs of a ladder of budgets at or under the one given, and
the fastest is taken; so a larger budget never gives a slower plan. A rung whose lower bound is no
better than what was found ends the descent.
"""

from __future__ import annotations

from functools import partial, reduce
from itertools import chain

from karma_fx.planner.bound import Relaxation, relax
from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.checkmate import recompute_only
from karma_fx.strategies.decision import Outcome, better
from karma_fx.strategies.karma20 import karma20
from karma_fx.strategies.keep import keep
from karma_fx.strategies.knapsack import knapsack
from karma_fx.strategies.rounding import starts
from karma_fx.strategies.search import GOOD_ENOUGH, Search
from karma_fx.strategies.sqrt import sqrt
from karma_fx.strategies.superneurons import superneurons

PUBLISHED = (superneurons, karma20, sqrt, knapsack, partial(recompute_only, whole=False))
"""Tried where the search's own candidates are not close to the bound."""

RUNGS = 128
WHOLE_LADDER_OPS = 100
"""Graphs with more operations than this are planned for the given budget only."""

LARGE_OPS, CLOSE = 3000, 1.03
"""For graphs with more operations, a plan this close to the bound ends the search."""

TARGETS = (
    (WHOLE_LADDER_OPS, (1.0, 0.9)),
    (LARGE_OPS, (1.0, 0.97, 0.94, 0.9, 0.85, 0.8)),
    (1 << 62, (1.0, 0.94)),
)
"""For graphs of at most so many operations: shares of the budget to solve the relaxation for."""

IMPROVED = 2
"""Local search begins from so many of the best starting points."""

SAME = 1.0001
"""Times this close are the same."""


def karma(problem: Problem, links: Links, budget_bytes: int) -> Outcome:
    best = keep(problem, links, budget_bytes)
    if best.placement.fits(budget_bytes):
        return best
    search = Search(problem, links)
    lowest = search.lowest_peak()
    if not lowest.placement.fits(budget_bytes):
        return lowest
    if len(problem.ops) > WHOLE_LADDER_OPS:
        relaxed = relax(problem, links, budget_bytes)
        return better(lowest, solve(search, relaxed, budget_bytes), budget_bytes)
    return descend(search, lowest, best.placement.peak_bytes, budget_bytes)


def descend(search: Search, lowest: Outcome, high: int, budget_bytes: int) -> Outcome:
    """The fastest plan of all rungs at or under the budget. ``high`` is what keeping all needs."""
    low, best = lowest.placement.peak_bytes, lowest
    rung = (budget_bytes - low) * RUNGS // (high - low)
    while rung >= 0:
        at = low + (high - low) * rung // RUNGS
        relaxed = relax(search.problem, search.links, at)
        if SAME * relaxed.step_us >= best.placement.step_us:
            break
        best = better(best, solve(search, relaxed, at), budget_bytes)
        rung -= 1
    return best


def solve(search: Search, relaxed: Relaxation, budget_bytes: int) -> Outcome:
    """The best plan found for exactly this budget."""
    size = len(search.problem.ops)
    enough_us = (CLOSE if size > LARGE_OPS else GOOD_ENOUGH) * relaxed.step_us
    targets = next(targets for ops, targets in TARGETS if size <= ops)
    found = starts(search.problem, search.links, relaxed, budget_bytes, targets)
    published = (strategy(search.problem, search.links, budget_bytes) for strategy in PUBLISHED)
    for outcome in chain(search.candidates(budget_bytes), published):
        if found and found[0].placement.step_us <= enough_us:
            return found[0]
        found.append(outcome)
        found.sort(key=lambda o: (not o.placement.fits(budget_bytes), o.placement.step_us))
    improved = [search.improve(start, enough_us, budget_bytes) for start in found[:IMPROVED]]
    return reduce(partial(better, budget_bytes=budget_bytes), improved)
