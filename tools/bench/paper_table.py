"""The paper's setting, simulated: batches that need a multiple of a device's memory.

    python -m karma_fx.tools.bench.paper_table --models resnet50 vgg16 --device v100-16gb
    python -m karma_fx.tools.bench.paper_table --models megatron:size=1.2b --device h100-80gb \
        --dtype bfloat16

For each model the memory that keeping everything needs is found (on fake tensors) at two batch
sizes; it is linear in the batch, so the batch for 1.5, 2, 3 and 4 times the device's memory
follows. The table gives step time over unlimited time for every strategy, and the geometric means
of karma's speed-up over the best of each family.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from math import exp, log
from statistics import median
from typing import Any

import torch
from tabulate import tabulate

import karma_fx.models as zoo
from karma_fx.compare import Comparison, Row, compare
from karma_fx.offline import analyze
from karma_fx.profile.devices import DeviceProfile, find_device
from karma_fx.strategies.keep import keep
from karma_fx.tools.model import keywords
from karma_fx.units import format_bytes
from karma_fx.work import Work

PAPER_SIZE: dict[str, dict[str, Any]] = {"unet": {"size": "paper"}}
"""What the zoo's callables need beside a batch to be the published models."""

MULTIPLES = (1.5, 2.0, 3.0, 4.0)
FAMILIES = {
    "swapping": ("offload", "superneurons"),
    "per-block checkpoint": ("checkpoint",),
    "recompute": ("checkpoint", "sqrt", "knapsack", "checkmate", "recompute"),
    "karma20": ("karma20",),
}


@dataclass(frozen=True, slots=True)
class Setting:
    model: str
    multiple: float
    batch: int
    operations: int
    seconds: float
    found: Comparison


def analyzed(model: str, batch: int, device: DeviceProfile, extra: dict[str, Any]) -> Work:
    """``model`` is a name of the zoo, with keyword arguments behind a colon, if any."""
    name, _, given = model.partition(":")
    arguments = {**PAPER_SIZE.get(name, {}), **keywords(given.split(",") if given else []), **extra}
    with torch.device("meta"):
        module, inputs = getattr(zoo, name)(batch=batch, **arguments)
    return analyze(module, inputs, device=device)


def needed_bytes(work: Work) -> int:
    assert work.problem is not None and work.links is not None
    return keep(work.problem, work.links, 1 << 60).placement.peak_bytes


def batch_for(
    model: str, device: DeviceProfile, extra: dict[str, Any], small: int = 4
) -> Callable[[float], int]:
    """``multiple`` -> the batch whose step needs that many times the device's memory."""
    one, two = (needed_bytes(analyzed(model, n, device, extra)) for n in (small, 2 * small))
    per_item = (two - one) / small
    fixed = one - per_item * small
    return lambda multiple: max(1, round((multiple * device.memory_bytes - fixed) / per_item))


def settings(
    models: Iterable[str], device: DeviceProfile, extra: dict[str, Any]
) -> Iterable[Setting]:
    for model in models:
        find = batch_for(model, device, extra)
        for multiple in MULTIPLES:
            batch = find(multiple)
            start = time.perf_counter()
            work = analyzed(model, batch, device, extra)
            assert work.problem is not None and work.links is not None
            found = compare(work.problem, work.links, device.memory_bytes)
            took_s = time.perf_counter() - start
            yield Setting(model, multiple, batch, len(work.problem.ops), took_s, found)


def cells(setting: Setting) -> list[str]:
    found = setting.found
    unlimited = found.unlimited_us
    row = [setting.model, f"{setting.multiple:g}x", str(setting.batch)]
    row += [f"{r.step_us / unlimited:.3f}" if r.feasible else "-" for r in found.rows]
    bound = found.bound_us
    karma = found.row("karma")
    row.append("-" if bound is None else f"{bound / unlimited:.3f}")
    row.append(f"{karma.step_us / bound:.3f}" if bound and karma.feasible else "-")
    row.append("" if karma.feasible else format_bytes(karma.peak_bytes))
    return row


def speedups(done: list[Setting]) -> dict[str, tuple[float, int]]:
    """Family -> geometric mean of its best member's time over karma's, and over how many rows."""
    means = {}
    for family, names in FAMILIES.items():
        logs = []
        for setting in done:
            karma = setting.found.row("karma")
            times = [r.step_us for r in setting.found.rows if r.name in names and r.feasible]
            if karma.feasible and times:
                logs.append(log(min(times) / karma.step_us))
        if logs:
            means[family] = (exp(sum(logs) / len(logs)), len(logs))
    return means


def read(path: str) -> list[Setting]:
    """The rows that an earlier run wrote."""
    with open(path) as file:
        rows = json.load(file)
    for row in rows:
        found = row["found"]
        found["rows"] = tuple(Row(**r) for r in found["rows"])
        row["found"] = Comparison(**found)
    return [Setting(**row) for row in rows]


def beaten(setting: Setting) -> bool:
    found, karma = setting.found, setting.found.row("karma")
    return any(r.feasible and not karma.step_us <= r.step_us for r in found.rows)


def report(done: list[Setting]) -> None:
    names = [row.name for row in done[0].found.rows]
    headers = ["model", "needs", "batch", *names, "bound", "karma / bound", "smallest feasible"]
    print(tabulate([cells(s) for s in done], headers, disable_numparse=True))
    ratios = sorted(
        s.found.row("karma").step_us / s.found.bound_us
        for s in done
        if s.found.bound_us and s.found.row("karma").feasible
    )
    if ratios:
        print(f"karma / bound: median {median(ratios):.3f}, worst {ratios[-1]:.3f}")
    slower = [f"{s.model} {s.multiple:g}x" for s in done if beaten(s)]
    print(f"rows on which another strategy is faster than karma: {', '.join(slower) or 'none'}")
    for family, (mean, rows) in speedups(done).items():
        print(f"karma over the best of {family}: {mean:.3f} (geometric mean of {rows} rows)")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="karma against the published strategies, simulated"
    )
    parser.add_argument("--models", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--device", default="v100-16gb")
    parser.add_argument("--dtype", default="float32", help="default float32")
    parser.add_argument("--json", metavar="FILE", help="also write all numbers there")
    parser.add_argument(
        "--add", nargs="*", default=[], metavar="FILE", help="rows of earlier --json"
    )
    args = parser.parse_args(argv)
    device, extra = find_device(args.device), {"dtype": getattr(torch, args.dtype)}
    done = [setting for path in args.add for setting in read(path)]
    for setting in settings(args.models, device, extra):
        done.append(setting)
        print(f"{setting.model} {setting.multiple:g}x: {setting.seconds:.0f} s", file=sys.stderr)
    report(done)
    if args.json:
        with open(args.json, "w") as file:
            json.dump([asdict(s) for s in done], file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
