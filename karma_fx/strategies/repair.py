"""Make an outcome fit: change one action at a time where near memory is over the budget."""

from __future__ import annotations

from karma_fx.planner.links import Links
from karma_fx.planner.memory import Curve, spans
from karma_fx.planner.problem import Problem
from karma_fx.plans import Action
from karma_fx.strategies.decision import Outcome, can_offload, evaluate
from karma_fx.strategies.improve import Change, changed

ATTEMPTS, TRIED = 40, 16
"""At most so many changes, each the best of so many."""


def repair(problem: Problem, links: Links, outcome: Outcome, budget_bytes: int) -> Outcome:
    """Greedily, the change that takes off most excess for its time; ends where the outcome fits, or
    where no change takes off any."""
    for _ in range(ATTEMPTS):
        if outcome.placement.fits(budget_bytes):
            break
        before, best, best_rate = excess(outcome, budget_bytes), outcome, 0.0
        for change in remedies(problem, outcome, budget_bytes)[:TRIED]:
            decision = changed(outcome.decision, change)
            tried = evaluate(problem, decision, links, budget_bytes)
            slower = tried.placement.step_us / outcome.placement.step_us - 1.0
            rate = (before - excess(tried, budget_bytes)) / max(slower, 1e-3)
            if rate > best_rate:
                best, best_rate = tried, rate
        if best is outcome:
            break
        outcome = best
    return outcome


def excess(outcome: Outcome, budget_bytes: int) -> float:
    """Bytes over the budget, summed over all positions."""
    curves = (outcome.placement.forward_curve, outcome.placement.backward_curve)
    return sum(float((curve - budget_bytes).clip(min=0).sum()) for curve in curves)


def remedies(problem: Problem, outcome: Outcome, budget_bytes: int) -> list[Change]:
    """Changes that could take bytes off the fullest position, largest tensors first: to move or
    recompute what lies idle there, and to save what was recomputed by then, with all that it was
    recomputed from."""
    placed, sequence, decision = outcome.placement, outcome.sequence, outcome.decision
    saved, far = decision.saved, decision.offloaded
    if placed.forward_curve.max() >= placed.backward_curve.max():
        at = int(placed.forward_curve.argmax())
        _, last = spans(problem, sequence.forward)
        idle = [s for s in saved - far if last.get(s, at) < at]
        again: list[int] = []
    else:
        curve: Curve = placed.backward_curve
        at = int(curve.argmax())
        first, last = spans(problem, sequence.backward)
        idle = [s for s in saved - far if first.get(s, at) > at]
        again = [
            s
            for s in problem.root_storage.values()
            if s not in saved
            and problem.storages[s].root in sequence.recomputed
            and first.get(s, at) <= at <= last.get(s, at)
        ]

    def largest(storages: list[int]) -> list[int]:
        movable = (s for s in storages if can_offload(problem, s))
        return sorted(movable, key=lambda s: (-problem.storages[s].nbytes, s))

    found: list[Change] = []
    for s in largest(again):
        found.append(((s, Action.OFFLOAD),))
    for s in largest(idle):
        found += [((s, Action.OFFLOAD),), ((s, Action.RECOMPUTE),)]
    return sorted(found, key=lambda c: -problem.storages[c[0][0]].nbytes)
