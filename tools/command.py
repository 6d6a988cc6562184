"""What a subcommand of ``karma`` is: one value, made by the file of its name."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from karma_fx.units import parse_bytes


@dataclass(frozen=True, slots=True)
class Command:
    """``run`` gets the parsed arguments, ``json`` among them, and returns the exit status."""

    name: str
    summary: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def size(text: str) -> int:
    """An argument in bytes: ``6GiB``, ``512MiB``, ``1073741824``."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def count(text: str) -> int:
    """An argument that is a whole number of at least one."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a whole number of at least 1: {text!r}")
    return int(text)
