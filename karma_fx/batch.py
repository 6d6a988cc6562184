"""Near memory as an expression of the batch size: "which is the largest batch that fits?" is
answered by solving.

The bytes of every tensor of a training step are affine in the batch size. So, for a fixed decision,
are the near bytes at every position of the step, and the peak is the maximum of some lines. The
lines come from the joint graph at two batch sizes, and are checked at a third.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import sympy

from karma_fx.errors import UnsupportedError
from karma_fx.planner.links import Links
from karma_fx.planner.memory import Curve
from karma_fx.planner.place import place
from karma_fx.planner.problem import Problem
from karma_fx.planner.sequence import make_sequence
from karma_fx.strategies.decision import Decision
from karma_fx.strategies.search import Search

BATCH = sympy.Symbol("batch", integer=True, positive=True)
SMALL = 8
"""The graph is captured at this batch size, at twice and at three times it."""


@dataclass(frozen=True, slots=True)
class NearMemory:
    """Peak of near bytes as expressions of ``BATCH``: ``keep`` for keeping every saved tensor,
    ``least`` for the plan with the smallest peak that karma has."""

    keep: sympy.Expr
    least: sympy.Expr


def near_memory(capture: Callable[[int], Problem], links: Links) -> NearMemory:
    """From ``capture``, which gives the joint graph for a batch size.

    Raises ``UnsupportedError`` when the graph depends on the batch size in another way than by
    affine sizes.
    """
    problems = [capture(n * SMALL) for n in (1, 2, 3)]
    if len({tuple(op.name for op in p.ops) for p in problems}) > 1:
        raise UnsupportedError("the model does other operations for other batch sizes")
    keep = Decision(problems[0].saved_by_default)
    least = Search(problems[0], links).lowest_peak().decision
    return NearMemory(*(_peak(problems, decision, links) for decision in (keep, least)))


def largest_batch(peak: sympy.Expr, budget_bytes: int) -> int:
    """The largest batch size whose ``peak`` is within the budget; 0 when not even 1 is, and
    ``UnsupportedError`` when the batch size does not matter."""
    lines = peak.args if isinstance(peak, sympy.Max) else (peak,)
    best: list[int] = []
    for line in lines:
        slope = line.coeff(BATCH)
        if slope > 0:
            best.append(int((budget_bytes - line.subs(BATCH, 0)) // slope))
        elif line.subs(BATCH, 0) > budget_bytes:
            return 0
    if not best:
        raise UnsupportedError("near memory does not depend on the batch size")
    return max(0, min(best))


def _peak(problems: list[Problem], decision: Decision, links: Links) -> sympy.Expr:
    first, second, third = (_curve(problem, decision, links) for problem in problems)
    if not len(first) == len(second) == len(third):
        raise UnsupportedError("the model does other operations for other batch sizes")
    slope = (second - first) // SMALL
    lines = {(int(a), int(b)) for a, b in zip(first - slope * SMALL, slope, strict=True)}
    expr = sympy.Max(*(a + b * BATCH for a, b in upper_hull(lines)))
    given = int(expr.subs(BATCH, 3 * SMALL))
    if abs(given - int(third.max())) > 0.001 * third.max():
        raise UnsupportedError(
            f"near memory is not affine in the batch size: {given} bytes expected at "
            f"{3 * SMALL}, {int(third.max())} found"
        )
    return expr


def _curve(problem: Problem, decision: Decision, links: Links) -> Curve:
    """Near bytes at every position, every transfer waited for at once."""
    sequence = make_sequence(problem, decision.saved)
    placed = place(problem, sequence, decision.offloaded, links, 0)
    return np.concatenate([placed.forward_curve, placed.backward_curve])


def upper_hull(lines: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of lines ``a + b * x``, those that are the highest for some ``x >= 0``, by slope."""
    steepest: dict[int, int] = {}
    for a, b in lines:
        steepest[b] = max(a, steepest.get(b, a))
    hull: list[tuple[int, int]] = []
    for b, a in sorted(steepest.items()):
        while hull and a >= hull[-1][0]:
            hull.pop()  # steeper and higher from the start
        while len(hull) > 1 and _meet(hull[-2], (a, b)) <= _meet(hull[-2], hull[-1]):
            hull.pop()
        hull.append((a, b))
    return hull


def _meet(one: tuple[int, int], other: tuple[int, int]) -> sympy.Rational:
    """Where two lines of different slopes cross."""
    return sympy.Rational(one[0] - other[0], other[1] - one[1])
