"""offload: every saved tensor goes far, as in vDNN (Rhu et al., MICRO'16, "vDNN all")."""

from __future__ import annotations

from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.decision import Decision, Outcome, evaluate


def offload(problem: Problem, links: Links, budget_bytes: int) -> Outcome:
    saved = problem.saved_by_default
    return evaluate(problem, Decision(saved, saved), links, budget_bytes)
