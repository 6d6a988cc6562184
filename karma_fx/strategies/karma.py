"""karma: offload and recompute, chosen per saved tensor, near the optimum.

KARMA (Wahib et al., SC'20) swaps only what exceeds capacity, earliest-produced first (it has the
longest window), and recomputes where compute would otherwise wait for the link. Here the unit is
the saved tensor. Three sources of candidates, then local search on the exact simulator:

1. for every limit on the price of recompute (microseconds a byte), recompute what is cheaper, and
   offload the shortest prefix of the rest, in order of making, that fits;
2. the linear relaxation of ``karma_fx.planner.bound``, rounded;
3. the published strategies that come beside it.

For small graphs plans are made for the rungs of a ladder of budgets at or under the one given, and
the fastest is taken; so a larger budget never gives a slower plan. A rung whose lower bound is no
better than what was found ends the descent.
"""

from __future__ import annotations

from functools import partial
from itertools import chain

from karma_fx.planner.bound import Relaxation, relax
from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.checkmate import recompute_only
from karma_fx.strategies.decision import Outcome, better
from karma_fx.strategies.karma20 import karma20
from karma_fx.strategies.keep import keep
from karma_fx.strategies.knapsack import knapsack
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
    large = len(search.problem.ops) > LARGE_OPS
    enough_us = (CLOSE if large else GOOD_ENOUGH) * relaxed.step_us
    best = search.roundings(relaxed, budget_bytes)
    published = (strategy(search.problem, search.links, budget_bytes) for strategy in PUBLISHED)
    for outcome in chain(search.candidates(budget_bytes), published):
        if best.placement.fits(budget_bytes) and best.placement.step_us <= enough_us:
            return best
        best = better(best, outcome, budget_bytes)
    return search.improve(best, enough_us, budget_bytes)
