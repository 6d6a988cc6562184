"""recompute: every saved tensor that can be is recomputed, from the inputs on.

The extreme that shows what recompute can do to the numbers (nothing). It is rarely a good plan: the
first operation of backward recomputes nearly all of forward.
"""

from __future__ import annotations

from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.decision import Decision, Outcome, evaluate


def recompute(problem: Problem, links: Links, budget_bytes: int) -> Outcome:
    return evaluate(problem, Decision(frozenset()), links, budget_bytes)
