"""``karma plan``: a plan for a device that one need not have."""

from __future__ import annotations

import argparse

from tabulate import tabulate

from karma_fx.errors import OptionError
from karma_fx.offline import plan as make_plan
from karma_fx.plans import Action, Plan
from karma_fx.strategies.registry import STRATEGIES
from karma_fx.tools.command import Command
from karma_fx.tools.model import add_model_arguments, load_model
from karma_fx.units import format_bytes, format_us


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--memory", metavar="SIZE", help='such as "14GiB"; default: all there is')
    parser.add_argument(
        "--device", default="cpu", help="a preset such as v100-16gb, or a JSON file; default cpu"
    )
    parser.add_argument("--strategy", choices=sorted(STRATEGIES), default="karma")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write the plan")


def summary(plan: Plan) -> str:
    """What the plan does, and what it is expected to cost."""
    p = plan.predicted
    by_action = plan.bytes_by_action()
    rows = [
        ["budget", format_bytes(plan.budget_bytes)],
        ["peak", format_bytes(p.peak_bytes)],
        ["step", format_us(p.step_us)],
        ["of it recompute", format_us(p.recompute_us)],
        ["of it stalled", format_us(p.stall_us)],
        ["moved a step", format_bytes(p.moved_bytes)],
        ["blocks", str(len(plan.blocks))],
    ]
    if p.bound_us is not None:
        rows.insert(3, ["lower bound", f"{format_us(p.bound_us)} ({p.step_us / p.bound_us:.3f})"])
    for action in Action:
        count = sum(t.action is action for t in plan.tensors)
        rows.append([action.value, f"{count} tensors, {format_bytes(by_action[action])}"])
    return tabulate(rows, tablefmt="plain")


def run(args: argparse.Namespace) -> int:
    if args.memory is None and args.device == "cpu":
        raise OptionError("give --memory, or a --device whose memory is the budget")
    module, inputs = load_model(args.model, args.set)
    plan = make_plan(module, inputs, memory=args.memory, device=args.device, strategy=args.strategy)
    if args.output:
        plan.save(args.output)
    print(plan.to_json() if args.json else summary(plan))
    return 0


COMMAND = Command(
    name="plan",
    summary="plan a model's training step for a device, from its shapes alone",
    example="karma plan karma_fx.models:gpt --set batch=32 --memory 6GiB --device v100-16gb",
    add_arguments=add_arguments,
    run=run,
)
