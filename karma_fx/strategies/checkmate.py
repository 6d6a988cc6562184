"""checkmate: optimal recompute, without far memory.

Checkmate (Jain et al., MLSys'20) states which tensors to keep and which to compute again as an
integer program. Here it is the program of ``karma_fx.planner.bound`` without its link: with whole
tensors (a MILP) for graphs of up to 400 operations, rounded from its relaxation for larger ones.
The program sees memory at the fullest position of each block, so its solution is checked by the
exact placement, and solved again for a smaller budget where it does not fit.
"""

from __future__ import annotations

from karma_fx.planner.bound import relax
from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.decision import Decision, Outcome, better, evaluate
from karma_fx.strategies.recompute import recompute

EXACT_OPS = 400
ATTEMPTS = 8


def checkmate(problem: Problem, links: Links, budget_bytes: int) -> Outcome:
    return recompute_only(problem, links, budget_bytes, whole=len(problem.ops) <= EXACT_OPS)


def recompute_only(problem: Problem, links: Links, budget_bytes: int, *, whole: bool) -> Outcome:
    """The program's solution, exact (``whole``) or rounded."""
    best, target = recompute(problem, links, budget_bytes), budget_bytes
    for _ in range(ATTEMPTS):
        relaxed = relax(problem, links, target, far=False, whole=whole)
        if relaxed.step_us == float("inf"):
            break
        saved = frozenset(s for s, share in relaxed.saved.items() if share > 0.5)
        outcome = evaluate(problem, Decision(saved), links, budget_bytes)
        best = better(best, outcome, budget_bytes)
        over = outcome.placement.peak_bytes - budget_bytes
        if over <= 0:
            break
        target -= over
    return best
