"""schedule: costs and a budget -> a Plan. Decides everything, touches no node."""

from __future__ import annotations

from dataclasses import dataclass

from karma_fx.budget import budget_bytes
from karma_fx.errors import InfeasibleBudgetError, PlanError, PlanMismatchError
from karma_fx.fingerprint import fingerprint
from karma_fx.plan import (
    END,
    Action,
    BlockPlan,
    MovePlan,
    Plan,
    Predicted,
    TensorPlan,
    load_plan,
)
from karma_fx.planner.links import Links
from karma_fx.planner.place import Placement
from karma_fx.planner.problem import Problem
from karma_fx.planner.sequence import Sequence, legal_saved, make_sequence
from karma_fx.strategies.decision import Outcome
from karma_fx.strategies.registry import STRATEGIES
from karma_fx.units import format_bytes
from karma_fx.work import Work


def make_plan(work: Work, problem: Problem, links: Links) -> Plan:
    """Run the strategy. Raises ``InfeasibleBudgetError`` naming the smallest feasible budget."""
    budget = budget_bytes(work.options, problem.base_bytes)
    strategy = STRATEGIES[work.options.strategy]
    outcome = strategy(problem, links, budget)
    if not outcome.placement.fits(budget):
        smallest = strategy(problem, links, 0).placement.peak_bytes
        smallest = min(smallest, outcome.placement.peak_bytes)
        raise _infeasible(work, problem, budget, smallest)
    return _as_plan(work, problem, outcome, budget)


def _infeasible(work: Work, problem: Problem, budget: int, smallest: int) -> InfeasibleBudgetError:
    reserve = work.options.reserve
    hint = "" if work.options.strategy == "karma" else ', or try strategy="karma"'
    return InfeasibleBudgetError(
        f"a step of this graph does not fit {format_bytes(budget)} with strategy "
        f'"{work.options.strategy}"; the smallest budget that does is {smallest + reserve} bytes '
        f"({format_bytes(smallest + reserve)}"
        + (f", {format_bytes(reserve)} of it reserved)" if reserve else ")")
        + f". Parameters, buffers and inputs alone hold {format_bytes(problem.base_bytes)}. "
        f"Give options={{'memory': {smallest + reserve}}} or more, or a smaller batch{hint}.",
        budget_bytes=budget,
        smallest_bytes=smallest + reserve,
    )


def _as_plan(work: Work, problem: Problem, outcome: Outcome, budget: int) -> Plan:
    names = tensor_names(problem, outcome.sequence)
    return Plan(
        graph=fingerprint(work),
        device=work.device,
        strategy=work.options.strategy,
        budget_bytes=budget,
        blocks=_blocks(work, problem),
        tensors=tuple(_tensor(problem, outcome, s, name) for s, name in names.items()),
        schedule=_moves(outcome, names),
        predicted=_predicted(outcome.placement),
    )


def tensor_names(problem: Problem, sequence: Sequence) -> dict[int, str]:
    """Storage -> name, for the tensors that a plan speaks of: those that backward needs, and those
    that are saved since something is recomputed from them."""
    wanted = problem.saved_by_default | sequence.saved
    return {s: problem.storages[s].name for s in sorted(wanted)}


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


def _blocks(work: Work, problem: Problem) -> tuple[BlockPlan, ...]:
    def total(block: int, forward: bool) -> float:
        ops = (op for op in problem.ops if op.block == block and op.forward is forward)
        return sum(op.time_us for op in ops)

    return tuple(
        BlockPlan(
            name,
            sum(1 for op in problem.ops if op.block == b and op.forward),
            total(b, True),
            total(b, False),
        )
        for b, name in enumerate(work.block_names)
    )


def _predicted(placement: Placement) -> Predicted:
    return Predicted(
        placement.step_us,
        placement.compute_us,
        placement.stall_us,
        placement.recompute_us,
        placement.peak_bytes,
        placement.moved_bytes,
    )


def read_plan(work: Work, problem: Problem, path: str) -> Plan:
    """A plan from a file, for exactly this graph and at most this budget."""
    plan = load_plan(path)
    if plan.graph != fingerprint(work):
        raise PlanMismatchError(
            f"the plan {path!r} was made for another graph (other operations, shapes, dtypes, "
            'mode or frozen parameters); make a new one with options={"export": ...}'
        )
    budget = budget_bytes(work.options, problem.base_bytes)
    if work.options.memory is not None and plan.predicted.peak_bytes > budget:
        raise PlanMismatchError(
            f"the plan {path!r} needs {format_bytes(plan.predicted.peak_bytes)}, more than the "
            f"budget of {format_bytes(budget)}; raise options['memory'] or make a new plan"
        )
    return plan


def sequence_of(problem: Problem, plan: Plan) -> Sequence:
    """The order that ``plan`` leads to. Raises ``PlanError`` when the plan is not legal here."""
    saved = set()
    for tensor in plan.tensors:
        s = problem.root_storage.get(tensor.made)
        if s is None or problem.storages[s].nbytes != tensor.bytes:
            raise PlanError(f"the plan speaks of a tensor {tensor.name!r} that this graph lacks")
        if tensor.action is not Action.RECOMPUTE:
            saved.add(s)
    if missing := legal_saved(problem, frozenset(saved)) - saved:
        names = ", ".join(sorted(problem.storages[s].name for s in missing))
        raise PlanError(f"the plan recomputes what can't be recomputed: {names}")
    offloaded = {t.name for t in plan.tensors if t.action is Action.OFFLOAD}
    if offloaded != {move.tensor for move in plan.schedule}:
        raise PlanError("the plan's schedule does not match its actions")
    return make_sequence(problem, frozenset(saved))


@dataclass(frozen=True)
class Schedule:
    """See the module's docstring."""

    name: str = "schedule"

    def apply(self, work: Work) -> None:
        assert work.problem is not None and work.links is not None
        if work.options.plan is not None:
            work.plan = read_plan(work, work.problem, work.options.plan)
        else:
            work.plan = make_plan(work, work.problem, work.links)
        work.sequence = sequence_of(work.problem, work.plan)
        if work.options.export is not None:
            work.plan.save(work.options.export)
