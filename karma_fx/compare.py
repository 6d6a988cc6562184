"""Every strategy on the same costs, link and placement, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from karma_fx.planner.bound import relax
from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.keep import keep
from karma_fx.strategies.registry import STRATEGIES


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy's plan. Where it is not ``feasible``, the numbers are those of the plan with the
    smallest peak that the strategy has."""

    name: str
    feasible: bool
    step_us: float
    peak_bytes: int
    stall_us: float
    recompute_us: float
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """``unlimited_us`` and ``unlimited_bytes``: what keeping everything takes and needs.
    ``bound_us`` is None where not even the relaxation fits the budget."""

    budget_bytes: int
    unlimited_us: float
    unlimited_bytes: int
    bound_us: float | None
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)


def compare(
    problem: Problem, links: Links, budget_bytes: int, names: Iterable[str] = STRATEGIES
) -> Comparison:
    """Plan ``problem`` with each of the strategies ``names``."""
    rows = []
    for name in names:
        placed = STRATEGIES[name](problem, links, budget_bytes).placement
        fits = placed.fits(budget_bytes)
        timing = placed.timing
        moved = placed.moved_bytes
        rows.append(
            Row(
                name,
                fits,
                timing.step_us,
                placed.peak_bytes,
                timing.stall_us,
                placed.recompute_us,
                moved,
            )
        )
    unlimited = keep(problem, links, budget_bytes).placement
    bound_us = relax(problem, links, budget_bytes).step_us
    return Comparison(
        budget_bytes,
        unlimited.step_us,
        unlimited.peak_bytes,
        None if bound_us == float("inf") else bound_us,
        tuple(rows),
    )
