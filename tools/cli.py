"""The command ``karma``. Each subcommand is a file of its own beside this one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from karma_fx.errors import KarmaError
from karma_fx.tools import compare, demo, plan, profile
from karma_fx.tools.command import Command

COMMANDS: tuple[Command, ...] = (
    plan.COMMAND,
    compare.COMMAND,
    profile.COMMAND,
    demo.COMMAND,
)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="karma",
        description="Out-of-core training for PyTorch: an unedited model inside a byte budget.",
    )
    parser.add_argument("--version", action="version", version=f"karma-fx {version('karma-fx')}")
    subcommands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        sub = subcommands.add_parser(
            command.name,
            help=command.summary,
            description=command.summary,
            epilog=f"example:\n  {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
        sub.set_defaults(handler=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    try:
        status: int = args.handler(args)
    except KarmaError as error:
        print(f"karma: {error}", file=sys.stderr)
        return 1
    return status
