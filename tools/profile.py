"""``karma profile``: measure this machine, and write what the planner needs to know of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tabulate import tabulate

from karma_fx.errors import OptionError
from karma_fx.options import parse_options
from karma_fx.profile.devices import DeviceProfile
from karma_fx.profile.machine import STEPS, measure_machine
from karma_fx.runtime.pool import shared_tier
from karma_fx.tools.command import Command
from karma_fx.tools.progress import Progress
from karma_fx.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--far", default="disk", help="which far memory: disk, disk:DIR, ram")
    parser.add_argument("-o", "--output", metavar="FILE.json", help="where to write the profile")


def table(device: DeviceProfile) -> str:
    rows = [
        [f"matrix products, {d}", f"{rate / 1e9:.0f} GFLOP/s"] for d, rate in device.flops.items()
    ]
    rows += [
        ["memory", f"{device.memory_rate / 1e9:.1f} GB/s"],
        ["calling an operation", f"{device.launch_us:.1f} us"],
        ["to far memory", f"{device.out_rate / 1e9:.2f} GB/s"],
        ["from far memory", f"{device.in_rate / 1e9:.2f} GB/s"],
        ["latency of a transfer", f"{device.latency_us:.0f} us"],
        ["a transfer slows compute by", f"{100 * device.interference:.0f}%"],
        ["memory available", format_bytes(device.memory_bytes)],
    ]
    return tabulate(rows, tablefmt="plain", disable_numparse=True)


def run(args: argparse.Namespace) -> int:
    if args.output and not args.output.endswith(".json"):
        raise OptionError(f"-o {args.output!r}: a profile's name ends in .json")
    shared = shared_tier(parse_options({"far": args.far}).far)
    progress = Progress("measuring", STEPS)
    device = measure_machine(shared.tier, progress.advance)
    progress.close("done")
    if args.output:
        try:
            Path(args.output).write_text(device.to_json() + "\n")
        except OSError as error:
            raise OptionError(f"can't write {args.output!r}: {error.strerror}") from error
        print(
            f'use it: options={{"profile": "{args.output}"}}, or --device {args.output}',
            file=sys.stderr,
        )
    print(device.to_json() if args.json else table(device))
    return 0


COMMAND = Command(
    name="profile",
    summary="measure this machine: matrix products, memory, and the link to far memory",
    example="karma profile -o machine.json",
    add_arguments=add_arguments,
    run=run,
)
