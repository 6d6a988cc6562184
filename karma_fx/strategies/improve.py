"""Local search: change one decision, or trade two, as long as the step gets faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.plans import Action
from karma_fx.strategies.decision import Decision, Outcome, better, evaluate

Change = tuple[tuple[int, Action], ...]
"""New actions for a few storages."""

TRADED = 12
"""Trades are tried between so many of the dearest and so many of the cheapest."""


def improve(
    problem: Problem,
    links: Links,
    price: Mapping[int, float],
    best: Outcome,
    budget_bytes: int,
    *,
    enough_us: float,
    trials: int,
) -> Outcome:
    """The best outcome found from ``best``, by the first change that helps, over and over; each is
    evaluated by the exact placement. ``price`` is microseconds a byte to recompute each storage.
    Ends at ``enough_us``, after ``trials`` evaluations, or where no change helps."""
    if not best.placement.fits(budget_bytes):
        return best
    while trials > 0:
        start = best
        for change in changes(problem, price, start):
            decision = changed(best.decision, change)
            if decision == best.decision:
                continue
            if trials <= 0 or best.placement.step_us <= enough_us:
                return best
            trials -= 1
            best = better(best, evaluate(problem, decision, links, budget_bytes), budget_bytes)
        if best is start:
            break
    return best


def changed(decision: Decision, change: Change) -> Decision:
    saved, far = set(decision.saved), set(decision.offloaded)
    for s, action in change:
        (saved.discard if action is Action.RECOMPUTE else saved.add)(s)
        (far.add if action is Action.OFFLOAD else far.discard)(s)
    return Decision(frozenset(saved), frozenset(far))


def changes(problem: Problem, price: Mapping[int, float], outcome: Outcome) -> Iterator[Change]:
    """First take back what costs time (recompute, transfers that stall), then put cheap recompute
    in the place of transfers, then trade."""
    storages, decision = problem.storages, outcome.decision
    stalls: dict[int, float] = {}
    for _, _, s, stalled_us in outcome.placement.timing.stalls:
        stalls[s] = stalls.get(s, 0.0) + stalled_us
    again = problem.saved_by_default - decision.saved
    dearest = sorted(again, key=lambda s: (-price[s] * storages[s].nbytes, s))
    far = decision.offloaded
    stalled = sorted(far, key=lambda s: (-stalls.get(s, 0.0), -storages[s].nbytes, s))
    cheap_far = sorted(far, key=lambda s: (price.get(s, 0.0), s))
    kept = sorted(decision.saved - far, key=lambda s: (price.get(s, 0.0), s))
    for s in stalled:
        yield ((s, Action.KEEP),)
    for s in dearest:
        yield ((s, Action.KEEP),)
    for s in dearest:
        yield ((s, Action.OFFLOAD),)
    for s in cheap_far:
        yield ((s, Action.RECOMPUTE),)
    for a in dearest[:TRADED]:
        for b in cheap_far[:TRADED]:
            yield ((a, Action.OFFLOAD), (b, Action.RECOMPUTE))
            yield ((a, Action.KEEP), (b, Action.RECOMPUTE))
    for a in [*stalled[:TRADED], *dearest[:TRADED]]:
        for b in kept[:TRADED]:
            yield ((a, Action.KEEP), (b, Action.RECOMPUTE))
        for b in sorted(kept, key=lambda s: storages[s].root)[:TRADED]:
            yield ((a, Action.KEEP), (b, Action.OFFLOAD))
