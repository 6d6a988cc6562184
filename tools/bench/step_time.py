"""Step time of the demo's GPT: karma against what one would use instead, in ONE process.

    python -m karma_fx.tools.bench.step_time

Single timings drift by a quarter on a shared machine. So the variants take turns, step by step, and
what is reported is the median over the rounds of each variant's time over the reference's in the
same round. malloc's mmap threshold, which karma lowers for its whole process, is put back to
glibc's largest for the other variants' steps, so that they do not pay for it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from random import Random
from statistics import median

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import karma_fx
from karma_fx.models.gpt import GPT
from karma_fx.profile.meter import MemoryMeter
from karma_fx.runtime.malloc import return_freed_memory
from karma_fx.tools.progress import Progress
from karma_fx.units import MIB, format_bytes

GLIBC_LARGEST_THRESHOLD = 32 * MIB
REFERENCE = "aot_eager, no limit"
BY_HAND = "checkpoint by hand"

Step = Callable[[], Tensor]


class ByHand(nn.Module):
    """What a user does today: every block of the model wrapped into ``checkpoint``."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.block, x, use_reentrant=False)
        return y


def build(args: argparse.Namespace) -> tuple[GPT, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = GPT(
        layers=args.layers,
        width=args.width,
        heads=args.width // 64,
        context=args.context,
        vocab=256,
    )
    tokens = torch.randint(256, (args.batch, args.context + 1))
    return model, (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def step(model: nn.Module, call: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
    loss = call(*inputs)
    loss.backward()
    for parameter in model.parameters():
        parameter.grad = None
    return loss.detach()


def peak_bytes(model: nn.Module, inputs: tuple[Tensor, ...], run: Step) -> int:
    """Peak of tensor bytes during a step, parameters and inputs included."""
    with MemoryMeter() as meter:
        run()
    return meter.peak_bytes + sum(t.nbytes for t in [*model.parameters(), *inputs])


def variants(args: argparse.Namespace) -> tuple[dict[str, Step], dict[str, int], int]:
    """Steps by name, their measured peaks, and the budget: what checkpointing by hand needs."""
    steps: dict[str, Step] = {}
    peaks: dict[str, int] = {}

    def add(name: str, model: nn.Module, call: Callable[..., Tensor]) -> None:
        steps[name] = partial(step, model, call, inputs)
        steps[name]()  # compiles
        peaks[name] = peak_bytes(model, inputs, steps[name])

    model, inputs = build(args)
    add(REFERENCE, model, torch.compile(model, backend="aot_eager"))
    by_hand = build(args)[0]
    for index, block in enumerate(by_hand.blocks):
        by_hand.blocks[index] = ByHand(block)
    add(BY_HAND, by_hand, by_hand)
    model = build(args)[0]
    add("keep", model, compiled(model, {"strategy": "keep", "memory": "64GiB"}))
    options = {"memory": args.memory or peaks[BY_HAND], "far": args.far}
    model = build(args)[0]
    add("karma", model, compiled(model, options))
    return steps, peaks, int(options["memory"])


def compiled(model: nn.Module, options: dict[str, object]) -> Callable[..., Tensor]:
    torch._dynamo.reset()
    call: Callable[..., Tensor] = torch.compile(model, backend="karma", options=options)  # type: ignore[arg-type]
    return call


def measure(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Seconds of every variant in every round. The order is shuffled, since a step is slower or
    faster for what ran before it."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    names, random = list(steps), Random(0)
    progress = Progress("step time", rounds)
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            is_karma = name not in (REFERENCE, BY_HAND)
            return_freed_memory(MIB if is_karma else GLIBC_LARGEST_THRESHOLD)
            start = time.perf_counter()
            steps[name]()
            times[name].append(time.perf_counter() - start)
        progress.advance()
    progress.close()
    return times


def ratio(times: dict[str, list[float]], name: str, other: str) -> float:
    """The median of paired ratios."""
    return median(a / b for a, b in zip(times[name], times[other], strict=True))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, value in {
        "layers": 12,
        "width": 512,
        "context": 512,
        "batch": 4,
        "rounds": 9,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    parser.add_argument(
        "--memory", type=int, help="bytes; default: what checkpointing by hand needs"
    )
    parser.add_argument("--far", default="disk")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    steps, peaks, budget = variants(args)
    karma_fx.reset_stats()
    times = measure(steps, args.rounds)
    stats = karma_fx.stats()
    rows = [
        {
            "variant": name,
            "step_s": median(times[name]),
            "over_reference": ratio(times, name, REFERENCE),
            "over_by_hand": ratio(times, name, BY_HAND),
            "fastest_over_reference": min(times[name]) / min(times[REFERENCE]),
            "peak_bytes": peaks[name],
        }
        for name in steps
    ]
    if args.json:
        print(json.dumps({"budget_bytes": budget, "variants": rows}, indent=2))
        return 0
    cells = [
        [
            name,
            f"{median(times[name]):.2f} s",
            f"{ratio(times, name, REFERENCE):.3f}",
            f"{ratio(times, name, BY_HAND):.3f}",
            f"{min(times[name]) / min(times[REFERENCE]):.3f}",
            format_bytes(peaks[name]),
        ]
        for name in steps
    ]
    print(
        tabulate(
            cells, ["", "step", "over no limit", "over by hand", "fastest over no limit", "peak"]
        )
    )
    print(
        f"karma's budget: {format_bytes(budget)}; it moved "
        f"{format_bytes(stats.offloaded_bytes / args.rounds)} out a step and stalled "
        f"{stats.stalled_s / args.rounds:.3f} s a step"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
