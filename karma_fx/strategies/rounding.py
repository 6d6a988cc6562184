"""The relaxation, made whole: starting points for the search."""

from __future__ import annotations

from collections.abc import Iterator

from karma_fx.planner.bound import Relaxation, relax
from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.decision import Decision, Outcome, evaluate
from karma_fx.strategies.repair import repair

THRESHOLDS = ((0.5, 0.5), (0.5, 0.95), (0.9, 0.5))
"""A tensor is saved when the share saved is above the first, and goes far when the share of that
which goes far is above the second."""

REPAIRED = 4
"""So many of the most promising starting points are made to fit."""


def starts(
    problem: Problem,
    links: Links,
    relaxed: Relaxation,
    budget_bytes: int,
    targets: tuple[float, ...],
) -> list[Outcome]:
    """Outcomes that fit, most promising first. Relaxations for smaller budgets (``targets`` are
    shares of ``budget_bytes``) leave room for what the relaxation does not see. ``relaxed`` is the
    one for ``budget_bytes`` itself."""
    found: dict[Decision, Outcome] = {}
    for relaxation in _relaxations(problem, links, relaxed, budget_bytes, targets):
        for decision in _rounded(relaxation):
            if decision not in found:
                found[decision] = evaluate(problem, decision, links, budget_bytes)
    fitting: list[Outcome] = []
    for outcome in sorted(found.values(), key=lambda o: _promise(o, budget_bytes))[:REPAIRED]:
        whole = repair(problem, links, outcome, budget_bytes)
        if whole.placement.fits(budget_bytes):
            fitting.append(whole)
    return sorted(fitting, key=lambda o: o.placement.step_us)


def _relaxations(
    problem: Problem,
    links: Links,
    relaxed: Relaxation,
    budget_bytes: int,
    targets: tuple[float, ...],
) -> Iterator[Relaxation]:
    for chains in (False, True):
        for target in targets:
            if target < 1.0 or chains:
                smaller = int(budget_bytes * target)
                relaxed = relax(problem, links, smaller, chains=chains)
            if relaxed.step_us < float("inf"):
                yield relaxed


def _rounded(relaxed: Relaxation) -> Iterator[Decision]:
    for kept, sent in THRESHOLDS:
        saved = frozenset(s for s, share in relaxed.saved.items() if share > kept)
        far = (s for s in saved if relaxed.far.get(s, 0.0) > sent * relaxed.saved[s])
        yield Decision(saved, frozenset(far))


def _promise(outcome: Outcome, budget_bytes: int) -> float:
    """Step time, and as much more as the peak is over the budget."""
    placed = outcome.placement
    return placed.step_us * max(1.0, placed.peak_bytes / budget_bytes)
