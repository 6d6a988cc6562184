"""schedule: costs and a budget -> a Plan. Decides everything, touches no node."""

from __future__ import annotations

from dataclasses import dataclass, replace

from karma_fx.budget import budget_bytes
from karma_fx.errors import InfeasibleBudgetError, PlanMismatchError
from karma_fx.fingerprint import fingerprint
from karma_fx.planner.bound import relax
from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.planner.sequence import Sequence
from karma_fx.planner.translate import Heading, as_plan, settle
from karma_fx.plans import Plan, load_plan
from karma_fx.strategies.registry import STRATEGIES
from karma_fx.units import format_bytes
from karma_fx.work import Work


def budget_of(work: Work, problem: Problem) -> int:
    """The budget in bytes; that of a described device is what it has, unless the user said."""
    device_bytes = work.profile.memory_bytes if work.profile and work.offline else None
    return budget_bytes(work.options, problem.base_bytes, device_bytes)


def make_plan(work: Work, problem: Problem, links: Links) -> tuple[Plan, Sequence]:
    """Run the strategy. Raises ``InfeasibleBudgetError`` naming the smallest feasible budget."""
    budget = budget_of(work, problem)
    strategy = STRATEGIES[work.options.strategy]
    outcome = strategy(problem, links, budget)
    if not outcome.placement.fits(budget):
        smallest = strategy(problem, links, 0).placement.peak_bytes
        smallest = min(smallest, outcome.placement.peak_bytes)
        raise _infeasible(work, problem, budget, smallest)
    heading = Heading(
        fingerprint(work), work.device, work.options.strategy, budget, tuple(work.block_names)
    )
    plan = as_plan(problem, outcome, heading)
    bound_us = relax(problem, links, budget).step_us
    return replace(plan, predicted=replace(plan.predicted, bound_us=bound_us)), outcome.sequence


def _infeasible(work: Work, problem: Problem, budget: int, smallest: int) -> InfeasibleBudgetError:
    reserve = work.options.reserve
    hint = "" if work.options.strategy == "karma" else ', or try strategy="karma"'
    held = f"Parameters, buffers and inputs alone hold {format_bytes(problem.base_bytes)}"
    if problem.base_bytes > budget:
        held += ", more than the budget: a plan moves activations, never those"
    return InfeasibleBudgetError(
        f"a step of this graph does not fit {format_bytes(budget)} with strategy "
        f'"{work.options.strategy}"; the smallest budget that does is {smallest + reserve} bytes '
        f"({format_bytes(smallest + reserve)}"
        + (f", {format_bytes(reserve)} of it reserved)" if reserve else ")")
        + f". {held}. "
        f"Give options={{'memory': {smallest + reserve}}} or more, or a smaller batch{hint}.",
        budget_bytes=budget,
        smallest_bytes=smallest + reserve,
    )


def read_plan(work: Work, problem: Problem, path: str) -> Plan:
    """A plan from a file, for exactly this graph and at most this budget."""
    plan = load_plan(path)
    if plan.graph != fingerprint(work):
        raise PlanMismatchError(
            f"the plan {path!r} was made for another graph (other operations, shapes, dtypes, "
            'mode or frozen parameters); make a new one with options={"export": ...}'
        )
    budget = plan.budget_bytes
    if work.options.memory is not None:
        budget = budget_of(work, problem)
    if plan.predicted.peak_bytes > budget:
        raise PlanMismatchError(
            f"the plan {path!r} needs {format_bytes(plan.predicted.peak_bytes)}, more than the "
            f"budget of {format_bytes(budget)}; raise options['memory'] or make a new plan"
        )
    return replace(plan, budget_bytes=budget)


@dataclass(frozen=True)
class Schedule:
    """See the module's docstring."""

    name: str = "schedule"

    def apply(self, work: Work) -> None:
        assert work.problem is not None and work.links is not None
        problem, links = work.problem, work.links
        if work.options.plan is not None:
            plan = read_plan(work, problem, work.options.plan)
            work.plan, work.sequence = settle(problem, plan, links)
        else:
            work.plan, work.sequence = make_plan(work, problem, links)
        if work.options.export is not None:
            work.plan.save(work.options.export)
