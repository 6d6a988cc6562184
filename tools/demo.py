"""``karma demo``: one model, one memory limit, three ways to train it.

A byte-level GPT learns the text of Python's own manual. Plain eager PyTorch dies at the limit;
karma trains under it; a run without a limit, of the same graph unscheduled (``aot_eager``), says
what the losses must be, to the last bit.
"""

from __future__ import annotations

import argparse
import json
import sys

from tabulate import tabulate

from karma_fx.tools.command import Command, count, size
from karma_fx.tools.demo_runs import OUT_OF_MEMORY, Job, Run, run_job
from karma_fx.tools.progress import Progress
from karma_fx.units import MIB, format_bytes

HEAD_WIDTH = 64
CELL_WIDTH = 29
TITLES = {"eager": "plain eager", "karma": "karma", "reference": "no limit"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = {"layers": 12, "width": 512, "context": 512, "batch": 8, "steps": 5}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=count, default=value, help=f"default {value}")
    parser.add_argument(
        "--memory",
        type=size,
        default=960 * MIB,
        metavar="SIZE",
        help="karma's budget, for tensors; default 960MiB",
    )
    parser.add_argument(
        "--limit",
        type=size,
        default=1536 * MIB,
        metavar="SIZE",
        help="hard limit of the whole process (RLIMIT_DATA); default 1536MiB",
    )
    parser.add_argument(
        "--far", default="disk", help='where karma offloads to: "disk" or "disk:DIR"; default disk'
    )


def make_job(mode: str, args: argparse.Namespace) -> Job:
    return Job(
        mode=mode,
        layers=args.layers,
        width=args.width,
        heads=max(1, args.width // HEAD_WIDTH),
        context=args.context,
        batch=args.batch,
        steps=args.steps,
        memory_bytes=args.memory,
        far=args.far,
        limit_bytes=None if mode == "reference" else args.limit,
    )


def outcome(run: Run) -> str:
    """``trained 6 steps`` or ``died at step 0: out of memory``."""
    if run.death is None:
        return f"trained {len(run.steps)} steps"
    return f"died at step {len(run.steps)}: {run.death}"


def execute(job: Job) -> Run:
    """Run ``job`` behind a progress bar."""
    progress = Progress(f"{TITLES[job.mode]:>11}", job.steps)
    run = run_job(
        job, on_step=lambda step: progress.advance(f"loss {step.loss:.4f}"), tick=progress.draw
    )
    progress.close(outcome(run))
    return run


def shown_steps(steps: int) -> list[int]:
    """First, last, and two between: the steps whose losses the table shows."""
    return sorted({0, steps // 3, 2 * steps // 3, steps - 1})


def column(run: Run) -> list[str]:
    """One run's cells, under the rows of ``table``."""
    losses = [s.loss for s in run.steps]
    step_s = run.step_s
    offloaded_bytes = run.per_step("offloaded_bytes")
    stalled_s = run.per_step("stalled_s")
    return [
        "none" if run.job.limit_bytes is None else format_bytes(run.job.limit_bytes),
        outcome(run),
        format_bytes(run.peak_rss_bytes) if run.peak_rss_bytes else "",
        f"{run.steps[0].step_s:.2f} s" if run.steps else "",
        "" if step_s is None else f"{step_s:.2f} s",
        *(f"{losses[i]:.6f}" if i < len(losses) else "" for i in shown_steps(run.job.steps)),
        "" if offloaded_bytes is None else format_bytes(offloaded_bytes),
        "" if stalled_s is None else f"{stalled_s:.2f} s",
    ]


def table(runs: list[Run]) -> str:
    rows = ["memory limit", "outcome", "peak RSS", "first step (compiles)", "step time, median"]
    rows += [f"loss at step {i}" for i in shown_steps(runs[0].job.steps)]
    rows += ["offloaded a step", "stalled a step"]
    cells = zip(rows, *(column(run) for run in runs), strict=True)
    headers = ["", *(TITLES[run.job.mode] for run in runs)]
    return tabulate(
        list(cells), headers, disable_numparse=True, maxcolwidths=[None, *[CELL_WIDTH] * len(runs)]
    )


def first_difference(run: Run, reference: Run) -> int | None:
    """The first step whose loss differs by as much as a bit; ``None`` when none does."""
    pairs = zip(run.steps, reference.steps, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a.loss_hex != b.loss_hex), None)


def failure(runs: dict[str, Run]) -> str | None:
    """What the runs fail to show, in one sentence; ``None`` when they show it all."""
    eager, karma, reference = runs["eager"], runs["karma"], runs["reference"]
    for run in (karma, reference):
        if run.death is not None:
            return f"{TITLES[run.job.mode]} {outcome(run)}"
    step = first_difference(karma, reference)
    if step is not None:
        losses = f"{karma.steps[step].loss_hex} and {reference.steps[step].loss_hex}"
        return f"the losses differ at step {step}: {losses}"
    if eager.death is None:
        return "plain eager fits under this limit: lower --limit, or raise --batch"
    if not eager.death.startswith(OUT_OF_MEMORY):
        return f"plain eager {outcome(eager)}"
    return None


def as_json(runs: dict[str, Run], failed: str | None) -> str:
    reports = [
        {
            "name": name,
            "limit_bytes": run.job.limit_bytes,
            "outcome": outcome(run),
            "peak_rss_bytes": run.peak_rss_bytes,
            "step_s": [step.step_s for step in run.steps],
            "losses": [step.loss for step in run.steps],
            "offloaded_bytes_per_step": run.per_step("offloaded_bytes"),
            "stalled_s_per_step": run.per_step("stalled_s"),
        }
        for name, run in runs.items()
    ]
    memory_bytes = runs["karma"].job.memory_bytes
    return json.dumps({"memory_bytes": memory_bytes, "runs": reports, "failure": failed}, indent=2)


def run(args: argparse.Namespace) -> int:
    if args.width > HEAD_WIDTH and args.width % HEAD_WIDTH:
        print(f"karma demo: --width must be a multiple of {HEAD_WIDTH}", file=sys.stderr)
        return 2
    runs = {mode: execute(make_job(mode, args)) for mode in TITLES}
    failed = failure(runs)
    if args.json:
        print(as_json(runs, failed))
    else:
        print(f"\n{table(list(runs.values()))}\n")
    if failed is None:
        print(
            f"The losses of karma and of the run without a limit are bitwise equal, in all "
            f"{args.steps} steps.",
            file=sys.stderr if args.json else sys.stdout,
        )
        return 0
    unexpected = [r.stderr for r in runs.values() if r.death not in (None, OUT_OF_MEMORY)]
    print(*unexpected, f"karma demo: {failed}", sep="\n", file=sys.stderr)
    return 1


COMMAND = Command(
    name="demo",
    summary="train a GPT under a memory limit that plain PyTorch dies at",
    example="karma demo --steps 4 --memory 1GiB --limit 1600MiB",
    add_arguments=add_arguments,
    run=run,
)
