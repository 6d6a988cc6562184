"""karma20: KARMA as published, at the level of blocks.

Wahib et al., SC'20 (arXiv 2008.11421), as we understand it: capacity-based swapping (the last
blocks stay near; only as many of the first as must go far do) and then recompute interleaved: a
swapped block is recomputed from its input instead, if the simulated step gets faster.
"""

from __future__ import annotations

from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.checkpoint import boundary_storages, storages_of_block
from karma_fx.strategies.decision import Decision, Outcome, better, evaluate


def decide(problem: Problem, swapped: int, recomputed: frozenset[int]) -> Decision:
    """The first ``swapped`` blocks go far, but for those in ``recomputed``, of which only the
    boundaries do."""
    boundaries = boundary_storages(problem)
    saved: frozenset[int] = frozenset()
    far: frozenset[int] = frozenset()
    for block in range(problem.num_blocks):
        own = storages_of_block(problem, block)
        if block in recomputed:
            own &= boundaries
        saved |= own
        far |= own if block < swapped else frozenset()
    return Decision(saved, far)


def karma20(problem: Problem, links: Links, budget_bytes: int) -> Outcome:
    def outcome_for(swapped: int, recomputed: frozenset[int] = frozenset()) -> Outcome:
        return evaluate(problem, decide(problem, swapped, recomputed), links, budget_bytes)

    low, high = 0, problem.num_blocks
    while low < high:
        middle = (low + high) // 2
        if outcome_for(middle).placement.fits(budget_bytes):
            high = middle
        else:
            low = middle + 1
    best, flipped = outcome_for(low), frozenset[int]()
    for block in reversed(range(low)):  # the latest is needed first: its swap-in is hidden least
        outcome = outcome_for(low, flipped | {block})
        if better(best, outcome, budget_bytes) is outcome:
            best, flipped = outcome, flipped | {block}
    return best
