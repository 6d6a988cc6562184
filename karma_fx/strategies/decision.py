"""What a strategy returns, and how it is turned into a schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from karma_fx.planner.links import Links
from karma_fx.planner.place import Placement, place
from karma_fx.planner.problem import Problem
from karma_fx.planner.sequence import Sequence, legal_saved, make_sequence


@dataclass(frozen=True, slots=True)
class Decision:
    """Storages that cross from forward to backward, and which of them go far meanwhile. Every other
    saved tensor is recomputed."""

    saved: frozenset[int]
    offloaded: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A decision, the order it leads to, and its placed schedule."""

    decision: Decision
    sequence: Sequence
    placement: Placement


Strategy = Callable[[Problem, Links, int], Outcome]
"""``strategy(problem, links, budget_bytes)``: the best outcome of its kind. When nothing fits, the
one with the lowest peak."""


def evaluate(problem: Problem, decision: Decision, links: Links, budget_bytes: int) -> Outcome:
    """Order and place ``decision`` (made legal first) under ``budget_bytes``."""
    saved = legal_saved(problem, decision.saved)
    sequence = make_sequence(problem, saved)
    offloaded = frozenset(s for s in decision.offloaded & sequence.saved if can_offload(problem, s))
    placement = place(problem, sequence, offloaded, links, budget_bytes)
    return Outcome(Decision(sequence.saved, offloaded), sequence, placement)


def can_offload(problem: Problem, storage: int) -> bool:
    """Not what the caller holds anyway, nor what has no bytes or is no ordinary tensor."""
    s = problem.storages[storage]
    return s.movable and not s.pinned and s.nbytes > 0 and storage not in problem.gradients


def better(a: Outcome, b: Outcome, budget_bytes: int) -> Outcome:
    """The faster of two that fit; else the one that fits; else the one with the lower peak."""

    def rank(outcome: Outcome) -> tuple[bool, float]:
        fits = outcome.placement.fits(budget_bytes)
        return (not fits, outcome.placement.step_us if fits else outcome.placement.peak_bytes)

    return b if rank(b) < rank(a) else a
