"""Make an outcome fit: send far what lies idle where near memory is fullest."""

from __future__ import annotations

from karma_fx.planner.links import Links
from karma_fx.planner.memory import spans
from karma_fx.planner.problem import Problem
from karma_fx.strategies.decision import Decision, Outcome, better, can_offload, evaluate

ATTEMPTS = 12


def repair(problem: Problem, links: Links, outcome: Outcome, budget_bytes: int) -> Outcome:
    """The best outcome on the way from ``outcome`` to one that fits."""
    best = outcome
    for _ in range(ATTEMPTS):
        over = outcome.placement.peak_bytes - budget_bytes
        if over <= 0:
            break
        more: set[int] = set()
        for s in sorted(idle(problem, outcome), key=lambda s: (-problem.storages[s].nbytes, s)):
            if over <= 0:
                break
            more.add(s)
            over -= problem.storages[s].nbytes
        if not more:
            break
        decision = outcome.decision
        decision = Decision(decision.saved | more, decision.offloaded | more)
        outcome = evaluate(problem, decision, links, budget_bytes)
        best = better(best, outcome, budget_bytes)
    return best


def idle(problem: Problem, outcome: Outcome) -> list[int]:
    """Tensors that are near at the fullest position, are not touched there, and could be far: kept
    ones, and recomputed ones that are made long before their use."""
    placed, sequence, decision = outcome.placement, outcome.sequence, outcome.decision
    rest = [
        s
        for s in problem.saved_by_default
        if s not in decision.offloaded and can_offload(problem, s)
    ]
    if placed.forward_curve.max() >= placed.backward_curve.max():
        at = int(placed.forward_curve.argmax())
        _, last = spans(problem, sequence.forward)
        return [s for s in rest if s in decision.saved and last.get(s, at) < at]
    at = int(placed.backward_curve.argmax())
    first, last = spans(problem, sequence.backward)
    here = set(problem.ops[sequence.backward[at]].touches) if at < len(sequence.backward) else set()
    found = []
    for s in rest:
        begin = 0 if s in decision.saved else first.get(s, at)
        if begin < at < last.get(s, at) and s not in here:
            found.append(s)
    return found
