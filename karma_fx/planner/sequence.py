"""Which operations run, and in which order, once it is known which storages are saved.

Forward runs what its outputs and the saved storages need, in the joint graph's order. Backward runs
its own operations in the joint graph's order; a forward operation that must be recomputed is placed
just before the first backward operation that needs it. Where it has several outputs, they are taken
out of their tuple at once: the tuple would hold on to all of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from karma_fx.errors import UnsupportedError
from karma_fx.planner.problem import Problem


@dataclass(frozen=True, slots=True)
class Sequence:
    """Operation indices in execution order. ``recomputed`` are the forward ones in ``backward``."""

    saved: frozenset[int]
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    recomputed: frozenset[int]


def make_sequence(problem: Problem, saved: frozenset[int]) -> Sequence:
    """Order the operations when exactly ``saved`` (storage ids) cross from forward to backward.

    Raises ``ValueError`` when an operation that may not be recomputed would have to be; close the
    set with ``legal_saved`` first. Saved storages that backward turns out not to need are dropped.
    """
    ops = problem.ops
    roots = {problem.storages[s].root for s in saved}
    backward: list[int] = []
    done: set[int] = set()
    used_roots: set[int] = set()
    reads = problem.forward_inputs
    # A gradient may be a forward value itself: such outputs come last, needs without an operation.
    for i in [*problem.backward_ops, *(j for j in problem.backward_outputs if ops[j].forward)]:
        if ops[i].forward or not done.issuperset(reads[i]):
            missing = _missing(problem, i, roots, done, used_roots)
            for j in missing:
                if not ops[j].recomputable:
                    raise ValueError(f"{ops[j].name} may not be recomputed, but would have to be")
            backward.extend(missing)
            done.update(missing)
        if not ops[i].forward:
            backward.append(i)
    kept = frozenset(s for s in saved if problem.storages[s].root in used_roots)
    return Sequence(
        kept,
        _forward(problem, kept),
        _unpacked_at_once(problem, backward, done),
        frozenset(j for j in done if j not in used_roots),
    )


def _missing(
    problem: Problem, op: int, roots: set[int], done: set[int], used_roots: set[int]
) -> list[int]:
    """Forward operations to recompute before ``op``, in order; notes the saved roots in use."""
    found: set[int] = set()
    todo = [op] if problem.ops[op].forward else list(problem.forward_inputs[op])
    while todo:
        j = todo.pop()
        if j in done or j in found:
            continue
        if j in roots:
            used_roots.add(j)
            done.add(j)
        else:
            found.add(j)
            todo.extend(problem.forward_inputs[j])
    return sorted(found)


def _unpacked_at_once(problem: Problem, backward: list[int], done: set[int]) -> tuple[int, ...]:
    """``backward`` with each unpacking moved to just behind the operation that is run again."""
    ops = problem.ops
    again = done.intersection(backward)
    parts: defaultdict[int, list[int]] = defaultdict(list)
    for j in backward:
        if ops[j].forward and ops[j].unpacks and ops[j].inputs[0] in again:
            parts[ops[j].inputs[0]].append(j)
    moved = {j for own in parts.values() for j in own}
    order: list[int] = []
    for j in backward:
        todo = [] if j in moved else [j]
        while todo:
            order.append(todo.pop())
            todo.extend(reversed(parts.get(order[-1], ())))
    return tuple(order)


def _forward(problem: Problem, saved: frozenset[int]) -> tuple[int, ...]:
    wanted = set(problem.forward_outputs) | {problem.storages[s].root for s in saved}
    wanted.update(i for i in problem.forward_ops if problem.ops[i].required)
    return tuple(sorted(problem.closure(wanted)))


def legal_saved(problem: Problem, saved: frozenset[int]) -> frozenset[int]:
    """``saved`` plus the storages that must be saved since their operations can't be recomputed."""
    ops = problem.ops
    saved_roots = {problem.storages[s].root for s in saved}
    extra: set[int] = set()
    seen: set[int] = set()
    todo = [j for i in problem.backward_ops for j in ops[i].inputs]
    todo.extend(problem.backward_outputs)
    while todo:
        j = todo.pop()
        if j in seen or not ops[j].forward or j in saved_roots:
            continue
        seen.add(j)
        if ops[j].recomputable:
            todo.extend(ops[j].inputs)
        else:
            extra.add(_storage_of(problem, j))
    return frozenset(saved | extra)


def _storage_of(problem: Problem, op: int) -> int:
    """The storage to save so that ``op`` need not be recomputed."""
    if op in problem.root_storage:
        return problem.root_storage[op]
    raise UnsupportedError(
        f"{problem.ops[op].name} can be neither saved nor recomputed; "
        "compile the module that contains it with another back end"
    )
