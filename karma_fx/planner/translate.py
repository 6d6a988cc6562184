"""Between the planner's numbers and a plan's words: an outcome -> a Plan, a Plan -> an outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace

from karma_fx.errors import PlanError
from karma_fx.planner.links import Links
from karma_fx.planner.memory import liveness
from karma_fx.planner.place import Placement, place, placement_of
from karma_fx.planner.problem import Problem
from karma_fx.planner.sequence import Sequence, legal_saved, make_sequence
from karma_fx.planner.simulate import Move
from karma_fx.plans import END, Action, BlockPlan, MovePlan, Plan, Predicted, TensorPlan
from karma_fx.strategies.decision import Decision, Outcome, can_offload


@dataclass(frozen=True, slots=True)
class Heading:
    """What a plan says beside its decisions."""

    graph: str
    device: str
    strategy: str
    budget_bytes: int
    block_names: tuple[str, ...]


def as_plan(problem: Problem, outcome: Outcome, heading: Heading) -> Plan:
    """``outcome`` as a Plan."""
    names = tensor_names(problem, outcome.sequence)
    return Plan(
        graph=heading.graph,
        device=heading.device,
        strategy=heading.strategy,
        budget_bytes=heading.budget_bytes,
        blocks=_blocks(problem, heading.block_names),
        tensors=tuple(_tensor(problem, outcome, s, name) for s, name in names.items()),
        schedule=_moves(outcome, names),
        predicted=predicted(outcome.placement),
    )


def tensor_names(problem: Problem, sequence: Sequence) -> dict[int, str]:
    """Storage -> name, for the tensors that a plan speaks of: those that backward needs, and those
    that are saved since something is recomputed from them."""
    wanted = problem.saved_by_default | sequence.saved
    return {s: problem.storages[s].name for s in sorted(wanted)}


def predicted(placement: Placement) -> Predicted:
    return Predicted(
        placement.timing.step_us,
        placement.timing.compute_us,
        placement.timing.stall_us,
        placement.recompute_us,
        placement.peak_bytes,
        placement.moved_bytes,
    )


def _tensor(problem: Problem, outcome: Outcome, s: int, name: str) -> TensorPlan:
    storage, decision = problem.storages[s], outcome.decision
    action = Action.RECOMPUTE
    if s in decision.saved:
        action = Action.OFFLOAD if s in decision.offloaded else Action.KEEP
    return TensorPlan(name, storage.root, problem.ops[storage.root].block, storage.nbytes, action)


def _moves(outcome: Outcome, names: dict[int, str]) -> tuple[MovePlan, ...]:
    forward, backward = outcome.sequence.forward, outcome.sequence.backward

    def at(order: tuple[int, ...], position: int) -> int:
        return order[position] if position < len(order) else END

    return tuple(
        MovePlan(
            names[move.storage],
            at(forward, move.offload),
            at(forward, move.wait_offload),
            at(backward, move.prefetch),
            at(backward, move.wait_prefetch),
        )
        for move in outcome.placement.moves
    )


def _blocks(problem: Problem, names: tuple[str, ...]) -> tuple[BlockPlan, ...]:
    rows = [[0, 0.0, 0.0] for _ in names]
    for op in problem.ops:
        row = rows[op.block]
        row[0] += op.forward
        row[1 if op.forward else 2] += op.time_us
    return tuple(
        BlockPlan(name, int(count), forward_us, backward_us)
        for name, (count, forward_us, backward_us) in zip(names, rows, strict=True)
    )


def sequence_of(problem: Problem, plan: Plan) -> Sequence:
    """The order that ``plan``'s actions lead to. Raises ``PlanError`` when they are not legal."""
    saved: set[int] = set()
    if len({t.made for t in plan.tensors}) < len(plan.tensors):
        raise PlanError("the plan speaks of a tensor twice")
    for tensor in plan.tensors:
        s = problem.root_storage.get(tensor.made)
        if s is None or problem.storages[s].nbytes != tensor.bytes:
            raise PlanError(f"the plan speaks of a tensor {tensor.name!r} that this graph lacks")
        if tensor.action is not Action.RECOMPUTE:
            saved.add(s)
        if tensor.action is Action.OFFLOAD and not can_offload(problem, s):
            raise PlanError(f"the plan offloads {tensor.name!r}, which can't be offloaded")
    if missing := legal_saved(problem, frozenset(saved)) - saved:
        names = ", ".join(sorted(problem.storages[s].name for s in missing))
        raise PlanError(f"the plan recomputes what can't be recomputed: {names}")
    return make_sequence(problem, frozenset(saved))


def settle(problem: Problem, plan: Plan, links: Links) -> tuple[Plan, Sequence]:
    """``plan`` as it will run, and its order.

    Its actions are obeyed. Its schedule is too where it is legal for them; where it is not (someone
    edited an action) the transfers are placed anew. Peak and times are computed again, from the
    costs at hand. Raises ``PlanError`` when an action is not legal, or the peak over the budget.
    """
    sequence = sequence_of(problem, plan)
    offloaded = frozenset(
        s
        for t in plan.tensors
        if t.action is Action.OFFLOAD and (s := problem.root_storage[t.made]) in sequence.saved
    )
    moves = _moves_of(problem, plan, sequence, offloaded)
    placement = None if moves is None else _as_given(problem, sequence, offloaded, moves, links)
    if placement is None or not placement.fits(plan.budget_bytes):
        placement = place(problem, sequence, offloaded, links, plan.budget_bytes)
    if not placement.fits(plan.budget_bytes):
        raise PlanError(
            f"the plan's actions need {placement.peak_bytes} bytes near, over its budget of "
            f"{plan.budget_bytes}"
        )
    names = {problem.root_storage[t.made]: t.name for t in plan.tensors}
    outcome = Outcome(Decision(sequence.saved, offloaded), sequence, placement)
    expected = replace(predicted(placement), bound_us=plan.predicted.bound_us)
    settled = replace(plan, schedule=_moves(outcome, names), predicted=expected)
    return settled, sequence


def _moves_of(
    problem: Problem, plan: Plan, sequence: Sequence, offloaded: frozenset[int]
) -> tuple[Move, ...] | None:
    """The plan's schedule as positions; None where it is not legal for ``sequence``."""
    storage_of = {t.name: problem.root_storage[t.made] for t in plan.tensors}
    forward = {index: at for at, index in enumerate(sequence.forward)}
    backward = {index: at for at, index in enumerate(sequence.backward)}
    forward[END], backward[END] = len(forward), len(backward)
    try:
        moves = [
            Move(
                storage_of[m.tensor],
                forward[m.offload],
                forward[m.wait_offload],
                backward[m.prefetch],
                backward[m.wait_prefetch],
            )
            for m in plan.schedule
        ]
    except KeyError:
        return None
    if sorted(move.storage for move in moves) != sorted(offloaded):
        return None
    live = liveness(problem, sequence, offloaded)
    for move in moves:
        made = forward[problem.storages[move.storage].root]
        last, first = live.last_forward[move.storage], live.first_backward[move.storage]
        if not made < move.offload <= move.wait_offload or move.wait_offload <= last:
            return None
        if not move.prefetch <= move.wait_prefetch <= first:
            return None
    return tuple(moves)


def _as_given(
    problem: Problem,
    sequence: Sequence,
    offloaded: frozenset[int],
    moves: tuple[Move, ...],
    links: Links,
) -> Placement:
    """The placement that has exactly these ``moves``."""
    sizes = {s: problem.storages[s].nbytes for s in offloaded}
    live = liveness(problem, sequence, offloaded)
    return placement_of(problem, sequence, moves, live, sizes, links)
