"""karma's solver: against its lower bound, brute force, and itself under other budgets."""

from __future__ import annotations

from itertools import product
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karma_fx.planner.bound import relax
from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.planner.sequence import legal_saved
from karma_fx.strategies.decision import Decision, Outcome, better, can_offload, evaluate
from karma_fx.strategies.karma import SAME, karma
from karma_fx.strategies.keep import keep
from karma_fx.strategies.registry import STRATEGIES
from tests.problems import random_problem

LINKS = (Links(2000.0, 2000.0, 0.5), Links(200.0, 400.0, 1.0))


def budget_between(problem: Problem, links: Links, share: float) -> int:
    low = karma(problem, links, 0).placement.peak_bytes
    high = keep(problem, links, 0).placement.peak_bytes
    return int(low + share * (high - low))


def brute_force(problem: Problem, links: Links, budget: int) -> Outcome:
    """Every legal choice of keep, offload or recompute for every saved tensor."""
    tensors = sorted(problem.saved_by_default)
    best = keep(problem, links, budget)
    for actions in product("kor", repeat=len(tensors)):
        saved = {t for t, action in zip(tensors, actions, strict=True) if action != "r"}
        far = {t for t, action in zip(tensors, actions, strict=True) if action == "o"}
        if any(not can_offload(problem, t) for t in far) or legal_saved(
            problem, frozenset(saved)
        ) != frozenset(saved):
            continue
        decision = Decision(frozenset(saved), frozenset(far))
        best = better(best, evaluate(problem, decision, links, budget), budget)
    return best


@pytest.mark.parametrize("links", LINKS)
def test_near_brute_force(links: Links) -> None:
    ratios = []
    for seed in range(20):
        problem = random_problem(seed, 6, branchy=seed % 2 == 0)
        if len(problem.saved_by_default) > 6:
            continue
        budget = budget_between(problem, links, (seed % 5 + 1) / 6)
        exact, found = brute_force(problem, links, budget), karma(problem, links, budget)
        assert found.placement.fits(budget)
        ratios.append(found.placement.step_us / exact.placement.step_us)
    assert len(ratios) > 10
    assert median(ratios) <= 1.03
    assert sum(ratio > 1.03 for ratio in ratios) <= len(ratios) // 4


@given(st.integers(0, 10**6), st.integers(3, 12), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=30)
def test_a_larger_budget_is_never_slower(seed: int, layers: int, a: float, b: float) -> None:
    problem, links = random_problem(seed, layers), LINKS[seed % 2]
    small, large = (budget_between(problem, links, share) for share in sorted((a, b)))
    slow, fast = karma(problem, links, small), karma(problem, links, large)
    assert slow.placement.fits(small) and fast.placement.fits(large)
    assert fast.placement.step_us <= slow.placement.step_us * SAME


@given(st.integers(0, 10**6), st.integers(3, 12), st.floats(0, 1.1))
@settings(max_examples=60)
def test_no_plan_beats_the_bound(seed: int, layers: int, share: float) -> None:
    problem, links = random_problem(seed, layers), LINKS[seed % 2]
    budget = budget_between(problem, links, share)
    bound_us = relax(problem, links, budget).step_us
    for name, strategy in STRATEGIES.items():
        placed = strategy(problem, links, budget).placement
        assert not placed.fits(budget) or placed.step_us >= bound_us * (1 - 1e-6), name


def test_nothing_fits_where_the_relaxation_does_not() -> None:
    problem = random_problem(1, 8)
    assert relax(problem, LINKS[0], problem.base_bytes - 1).step_us == float("inf")
    assert not karma(problem, LINKS[0], problem.base_bytes - 1).placement.fits(problem.base_bytes)
