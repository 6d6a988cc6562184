"""superneurons: offload what is dear to compute, recompute the rest.

SuperNeurons (Wang et al., PPoPP'18): the outputs of convolutions go to the host, and the cheap
layers between them (activations, normalisation, pooling, dropout) are recomputed from those. Here
"dear" are matrix products, convolutions and attention.
"""

from __future__ import annotations

from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.strategies.decision import Decision, Outcome, evaluate


def heavy_storages(problem: Problem) -> frozenset[int]:
    """Saved tensors that a heavy operation makes, or that can't be recomputed."""
    storages, ops = problem.storages, problem.ops
    heavy = {s for op in ops if op.heavy for s in op.makes}
    fixed = {s for s in problem.saved_by_default if not ops[storages[s].root].recomputable}
    return problem.saved_by_default & (heavy | fixed)


def superneurons(problem: Problem, links: Links, budget_bytes: int) -> Outcome:
    saved = heavy_storages(problem)
    return evaluate(problem, Decision(saved, saved), links, budget_bytes)
