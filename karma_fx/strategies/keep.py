"""keep: every saved tensor stays near. What PyTorch itself does."""

from __future__ import annotations

from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.decision import Decision, Outcome, evaluate


def keep(problem: Problem, links: Links, budget_bytes: int) -> Outcome:
    return evaluate(problem, Decision(problem.saved_by_default), links, budget_bytes)
