"""checkpoint: each block keeps its inputs and recomputes its interior in backward.

What ``torch.utils.checkpoint`` around every block does (Chen et al., 2016, arXiv 1604.06174), with
the last block not recomputed, since backward begins with it.
"""

from __future__ import annotations

from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.decision import Decision, Outcome, evaluate


def boundary_storages(problem: Problem) -> frozenset[int]:
    """Activations that one block makes and a later block's forward reads."""
    found: set[int] = set()
    for i in problem.forward_ops:
        for s in problem.ops[i].touches:
            root = problem.storages[s].root
            if root >= 0 and problem.ops[root].block < problem.ops[i].block:
                found.add(s)
    return frozenset(s for s in found if problem.storages[s].savable)


def storages_of_block(problem: Problem, block: int) -> frozenset[int]:
    """Saved tensors that ``block`` makes."""
    storages, ops = problem.storages, problem.ops
    return frozenset(s for s in problem.saved_by_default if ops[storages[s].root].block == block)


def checkpoint(problem: Problem, links: Links, budget_bytes: int) -> Outcome:
    saved = boundary_storages(problem) | storages_of_block(problem, problem.num_blocks - 1)
    return evaluate(problem, Decision(saved), links, budget_bytes)
