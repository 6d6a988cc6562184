"""``karma compare``: every strategy on the same model, device and budget."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from tabulate import tabulate

from karma_fx.batch import largest_batch, near_memory
from karma_fx.budget import available_bytes
from karma_fx.compare import Comparison, compare
from karma_fx.errors import OptionError
from karma_fx.execute import Measured, execute
from karma_fx.offline import analyze, measured_links
from karma_fx.options import Options
from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.profile.devices import find_device
from karma_fx.tools.command import Command, count, size
from karma_fx.tools.model import add_model_arguments, load_model
from karma_fx.tools.picture import line_chart
from karma_fx.tools.progress import Progress
from karma_fx.units import GIB, format_bytes, format_us

CUT = 3.0
"""The picture shows step times up to so many times the unlimited one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--memory", type=size, metavar="SIZE", help="default: the device's")
    parser.add_argument(
        "--device", help="a preset or a JSON file; default cpu, measured with --run"
    )
    parser.add_argument(
        "--sweep", type=count, metavar="N", help="compare at N budgets, from loose to the smallest"
    )
    parser.add_argument("--svg", metavar="FILE", help="with --sweep: draw it")
    parser.add_argument("--run", action="store_true", help="also run every plan here, in turns")
    parser.add_argument("--rounds", type=count, default=7, help="with --run: steps each; default 7")
    parser.add_argument("--far", default="disk", help="with --run: which far memory; default disk")
    parser.add_argument(
        "--largest-batch",
        action="store_true",
        help="near memory by batch size; the largest that fits",
    )


def table(found: Comparison, measured: Mapping[str, Measured]) -> str:
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
        if measured:
            run = measured.get(row.name)
            cells = (
                ["", ""] if run is None else [format_us(run.step_us), format_bytes(run.peak_bytes)]
            )
            rows[-1] += cells
    names = ["strategy", "step", "/ unlimited", "/ bound", "peak", "stall", "recompute", "moved"]
    names += ["measured step", "measured peak"] if measured else []
    return tabulate(rows, names, disable_numparse=True)


def as_json(found: Comparison, measured: Mapping[str, Measured] | None = None) -> dict[str, object]:
    rows = [asdict(row) for row in found.rows]
    for row in rows:
        if measured and (run := measured.get(row["name"])):
            row |= {"measured_step_us": run.step_us, "measured_peak_bytes": run.peak_bytes}
    return {
        "budget_bytes": found.budget_bytes,
        "unlimited_us": found.unlimited_us,
        "unlimited_bytes": found.unlimited_bytes,
        "bound_us": found.bound_us,
        "strategies": rows,
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


def draw(found: list[Comparison], path: str) -> None:
    """The sweep as a picture. Raises ``OptionError`` when it can't be written."""
    names = ["karma", *(row.name for row in found[0].rows if row.name != "karma")]
    series: dict[str, list[tuple[float, float]]] = {}
    for name in names:
        fit = [
            (c.budget_bytes, c.row(name).step_us / c.unlimited_us)
            for c in found
            if c.row(name).feasible
        ]
        if fit:
            series[name] = [(budget / GIB, over) for budget, over in fit]
    bounds = [(c.budget_bytes / GIB, c.bound_us / c.unlimited_us) for c in found if c.bound_us]
    if bounds:
        series["lower bound"] = bounds
    try:
        Path(path).write_text(line_chart(series, "budget (GiB)", "step time / unlimited", CUT))
    except OSError as error:
        raise OptionError(f"can't write {path!r}: {error.strerror}") from error


def sweep(problem: Problem, links: Links, points: int) -> list[Comparison]:
    """At ``points`` budgets, from what keeping everything needs to the smallest feasible one."""
    loose = compare(problem, links, 0, ["keep", "karma"])
    low, high = loose.row("karma").peak_bytes, loose.unlimited_bytes
    steps = max(1, points - 1)
    return [compare(problem, links, high - (high - low) * i // steps) for i in range(points)]


def executed(found: Comparison, args: argparse.Namespace) -> dict[str, Measured]:
    """Every strategy that fits, run here in turns."""
    names = [row.name for row in found.rows if row.feasible]
    common = {"memory": found.budget_bytes, "far": args.far, "profile": args.device or "measure"}
    options = {name: {**common, "strategy": name} for name in names}
    progress = Progress("running", len(names) * (args.rounds + 1))
    module, inputs = load_model(args.model, args.set, real=True)
    measured = execute(module, inputs, options, rounds=args.rounds, on_step=progress.advance)
    progress.close("done")
    return measured


def batches(args: argparse.Namespace, links: Links, budget_bytes: int) -> int:
    """Print near memory as expressions of the batch size, and the largest that fits."""
    device = find_device(args.device or "cpu")

    def capture(batch: int) -> Problem:
        module, inputs = load_model(args.model, [*args.set, f"batch={batch}"])
        problem = analyze(module, inputs, device=device).problem
        assert problem is not None
        return problem

    near = near_memory(capture, links)
    rows = [
        {"plan": name, "near_bytes": str(peak), "largest_batch": largest_batch(peak, budget_bytes)}
        for name, peak in (("keep everything", near.keep), ("karma, smallest", near.least))
    ]
    print(
        json.dumps(rows, indent=1) if args.json else tabulate(rows, "keys", disable_numparse=True)
    )
    return 0


def run(args: argparse.Namespace) -> int:
    if args.run and args.sweep:
        raise OptionError("--run and --sweep can't be had together; run one budget at a time")
    if args.svg and not args.sweep:
        raise OptionError("--svg draws a sweep; give --sweep N too")
    measure = args.run and args.device is None
    device = None if measure else find_device(args.device or "cpu")
    memory = args.memory or (device.memory_bytes if device else available_bytes())
    if args.largest_batch:
        return batches(args, device.links() if device else measured_links(args.far), memory)
    module, inputs = load_model(args.model, args.set)
    work = analyze(module, inputs, device=device, options=Options(far=args.far))
    problem, links = work.problem, work.links
    assert problem is not None and links is not None
    if args.sweep:
        points = sweep(problem, links, args.sweep)
        if args.svg:
            draw(points, args.svg)
        text = (
            json.dumps([as_json(p) for p in points], indent=1) if args.json else sweep_table(points)
        )
    else:
        found = compare(problem, links, memory)
        measured = executed(found, args) if args.run else {}
        text = (
            json.dumps(as_json(found, measured), indent=1) if args.json else table(found, measured)
        )
    print(text)
    return 0


COMMAND = Command(
    name="compare",
    summary="compare karma with the published strategies, on the same costs and simulator",
    example="karma compare karma_fx.models:gpt --set batch=32 --memory 6GiB --device v100-16gb",
    add_arguments=add_arguments,
    run=run,
)
