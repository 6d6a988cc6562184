"""How planning time grows with the graph: a GPT of 12, 24, 48 and 96 layers.

    python -m karma_fx.tools.bench.planning_time

Times are of what planning takes once the joint graph is there, its costs being estimated:
annotation, partition, costs, and the schedule. Capturing the graph is torch's work and is shown
beside it. Each model is given half of the memory that keeping everything needs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from math import log

import torch
from tabulate import tabulate

import karma_fx.models as zoo
from karma_fx.offline import capture
from karma_fx.options import Options
from karma_fx.pipeline import DECIDING, pipeline, run_passes
from karma_fx.profile.devices import find_device
from karma_fx.strategies.keep import keep
from karma_fx.work import Work

LAYERS = (12, 24, 48, 96)


def plan_times(layers: int, device_name: str) -> dict[str, float]:
    """Seconds to capture, analyze and plan a GPT of ``layers`` layers, and what was planned."""
    device = find_device(device_name)
    with torch.device("meta"):
        module, inputs = zoo.gpt(
            layers=layers, width=2048, heads=16, context=2048, vocab=50304, batch=8,
            dtype=torch.bfloat16,
        )  # fmt: skip
    times = [time.perf_counter()]
    joint, outputs = capture(module, inputs)
    times.append(time.perf_counter())
    work = Work(joint, outputs, Options(), device=device.name, offline=True)
    work.profile, work.links = device, device.links()
    run_passes(work, pipeline(device)[:DECIDING])
    times.append(time.perf_counter())
    assert work.problem is not None and work.links is not None
    half = keep(work.problem, work.links, 0).placement.peak_bytes // 2
    work.options = Options(memory=half)
    times.append(time.perf_counter())
    run_passes(work, pipeline(device)[DECIDING : DECIDING + 1])
    times.append(time.perf_counter())
    assert work.plan is not None and work.plan.predicted.bound_us is not None
    return {
        "layers": layers,
        "operations": len(work.problem.ops),
        "nodes": len(joint.graph.nodes),
        "capture_s": times[1] - times[0],
        "analyze_s": times[2] - times[1],
        "schedule_s": times[4] - times[3],
        "planning_s": times[2] - times[1] + times[4] - times[3],
        "over_bound": work.plan.predicted.step_us / work.plan.predicted.bound_us,
    }


def exponent(rows: list[dict[str, float]]) -> float:
    """``k`` of time ~ nodes ** k between the smallest and the largest graph."""
    first, last = rows[0], rows[-1]
    return log(last["planning_s"] / first["planning_s"]) / log(last["nodes"] / first["nodes"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="planning time by size of the graph")
    parser.add_argument("--device", default="h100-80gb")
    parser.add_argument("--layers", nargs="+", type=int, default=LAYERS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rows = [plan_times(layers, args.device) for layers in args.layers]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    if len(rows) > 1:
        print(f"planning time grows as nodes ** {exponent(rows):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
