"""``karma compare``: every strategy on the same model, device and budget."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from tabulate import tabulate

from karma_fx.compare import Comparison, compare
from karma_fx.offline import analyze
from karma_fx.profile.devices import find_device
from karma_fx.tools.command import Command, count, size
from karma_fx.tools.model import add_model_arguments, load_model
from karma_fx.units import format_bytes, format_us


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--memory", type=size, metavar="SIZE", help="default: the device's")
    parser.add_argument("--device", default="cpu", help="a preset or a JSON file; default cpu")
    parser.add_argument(
        "--sweep", type=count, metavar="N", help="compare at N budgets, from loose to the smallest"
    )


def table(found: Comparison) -> str:
    """One row a strategy, fastest first; what does not fit comes last."""
    rows = []
    for row in sorted(found.rows, key=lambda r: (not r.feasible, r.step_us, r.name)):
        bound = found.bound_us
        rows.append(
            [
                row.name,
                format_us(row.step_us) if row.feasible else "does not fit",
                f"{row.step_us / found.unlimited_us:.3f}" if row.feasible else "",
                f"{row.step_us / bound:.3f}" if row.feasible and bound else "",
                format_bytes(row.peak_bytes),
                format_us(row.stall_us),
                format_us(row.recompute_us),
                format_bytes(row.moved_bytes),
            ]
        )
    names = ["strategy", "step", "/ unlimited", "/ bound", "peak", "stall", "recompute", "moved"]
    return tabulate(rows, names, disable_numparse=True)


def as_json(found: Comparison) -> dict[str, object]:
    return {
        "budget_bytes": found.budget_bytes,
        "unlimited_us": found.unlimited_us,
        "unlimited_bytes": found.unlimited_bytes,
        "bound_us": found.bound_us,
        "strategies": [asdict(row) for row in found.rows],
    }


def sweep_table(found: list[Comparison]) -> str:
    """Step time over unlimited: a row a budget, a column a strategy."""
    names = [row.name for row in found[0].rows]
    rows = []
    for comparison in found:
        unlimited = comparison.unlimited_us
        cells = [
            f"{row.step_us / unlimited:.3f}" if row.feasible else "-" for row in comparison.rows
        ]
        bound = "-" if comparison.bound_us is None else f"{comparison.bound_us / unlimited:.3f}"
        rows.append([format_bytes(comparison.budget_bytes), *cells, bound])
    return tabulate(rows, ["budget", *names, "bound"], disable_numparse=True)


def run(args: argparse.Namespace) -> int:
    device = find_device(args.device)
    module, inputs = load_model(args.model, args.set)
    work = analyze(module, inputs, device=device)
    problem, links = work.problem, work.links
    assert problem is not None and links is not None
    if not args.sweep:
        found = compare(problem, links, args.memory or device.memory_bytes)
        print(json.dumps(as_json(found), indent=1) if args.json else table(found))
        return 0
    loose = compare(problem, links, 0, ["keep", "karma"])
    low, high = loose.row("karma").peak_bytes, loose.unlimited_bytes
    steps = max(1, args.sweep - 1)
    budgets = [high - (high - low) * i // steps for i in range(args.sweep)]
    points = [compare(problem, links, budget) for budget in budgets]
    print(json.dumps([as_json(p) for p in points], indent=1) if args.json else sweep_table(points))
    return 0


COMMAND = Command(
    name="compare",
    summary="compare karma with the published strategies, on the same costs and simulator",
    example="karma compare karma_fx.models:gpt --set batch=32 --memory 6GiB --device v100-16gb",
    add_arguments=add_arguments,
    run=run,
)
