"""Prediction against reality on this machine: models x budgets x strategies.

    python -m karma_fx.tools.bench.prediction

For each model, plans for budgets from what keeping everything needs down to the smallest feasible
one are made from costs measured just before, and run in turns. The table shows measured over
predicted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

import karma_fx.models as zoo
from karma_fx.compare import compare
from karma_fx.execute import execute
from karma_fx.offline import analyze
from karma_fx.options import Options
from karma_fx.tools.progress import Progress
from karma_fx.units import format_bytes

STRATEGIES = ("karma", "offload", "checkpoint")
BUDGETS = 4
MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "gpt": lambda: zoo.gpt(layers=6, width=384, heads=6, context=256, batch=8),
    "vit": lambda: zoo.vit(layers=6, width=256, heads=4, image=96, patch=8, batch=16),
    "convnet": lambda: zoo.convnet(batch=64),
    "unet": lambda: zoo.unet(base=16, image=128, batch=4),
    "mlp": lambda: zoo.mlp(batch=4096),
}


def rows_of(name: str, rounds: int, far: str) -> list[dict[str, Any]]:
    """Every budget and strategy of one model that fits: predicted and measured."""
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    work = analyze(module, inputs, device=None, options=Options(far=far))
    assert work.problem is not None and work.links is not None
    loose = compare(work.problem, work.links, 0, ["keep", "karma"])
    low, high = loose.row("karma").peak_bytes, loose.unlimited_bytes
    rows: list[dict[str, Any]] = []
    options: dict[str, dict[str, Any]] = {}
    for index in range(BUDGETS):
        budget = high - (high - low) * index // (BUDGETS - 1)
        for expected in compare(work.problem, work.links, budget, STRATEGIES).rows:
            if expected.feasible:
                key = f"{expected.name} {budget}"
                options[key] = {"memory": budget, "strategy": expected.name, "far": far}
                rows.append({"model": name, "budget": budget, "key": key, "predicted": expected})
    progress = Progress(name, len(options) * (rounds + 1))
    measured = execute(module, inputs, options, rounds=rounds, on_step=progress.advance)
    progress.close()
    for row in rows:
        predicted, run = row.pop("predicted"), measured[row.pop("key")]
        row["strategy"] = predicted.name
        row["predicted_step_us"], row["measured_step_us"] = predicted.step_us, run.step_us
        row["step_ratio"] = run.step_us / predicted.step_us
        row["peak_ratio"] = run.peak_bytes / predicted.peak_bytes
        row["within_budget"] = run.peak_bytes <= row["budget"]
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="prediction against reality")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--far", default="disk")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as fresh:
        os.environ["KARMA_CACHE_DIR"] = fresh  # a shared machine is not what it was an hour ago
        rows = [row for name in args.models for row in rows_of(name, args.rounds, args.far)]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    print(table(rows))
    return 0


def table(rows: list[dict[str, Any]]) -> str:
    cells = [
        [
            row["model"],
            format_bytes(row["budget"]),
            row["strategy"],
            f"{row['predicted_step_us'] / 1e3:.1f} ms",
            f"{row['measured_step_us'] / 1e3:.1f} ms",
            f"{row['step_ratio']:.3f}",
            f"{row['peak_ratio']:.4f}",
        ]
        for row in rows
    ]
    names = ["model", "budget", "strategy", "predicted", "measured", "step ratio", "peak ratio"]
    off = median(abs(row["step_ratio"] - 1.0) for row in rows)
    worst = max(abs(row["peak_ratio"] - 1.0) for row in rows)
    over = sum(not row["within_budget"] for row in rows)
    return (
        f"{tabulate(cells, names, disable_numparse=True)}\n"
        f"step time off by {100 * off:.1f}% in the median; peak by {100 * worst:.2f}% at worst\n"
        f"over budget: {over} of {len(rows)}"
    )


if __name__ == "__main__":
    sys.exit(main())
