"""The argument MODEL of the subcommands, ``package.module:callable``, and ``--set``."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from karma_fx.errors import OptionError


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="package.module:callable, which returns (module, inputs); karma_fx.models:gpt is one",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a keyword argument of the callable, such as batch=256; repeatable",
    )


def value_of(text: str) -> Any:
    """``3`` -> 3, ``0.1`` -> 0.1, ``true`` -> True, ``bfloat16`` -> that dtype, else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    named = getattr(torch, text.removeprefix("torch."), None)
    return named if isinstance(named, torch.dtype) else text


def keywords(pairs: Sequence[str]) -> dict[str, Any]:
    """``["batch=4"]`` -> ``{"batch": 4}``. Raises ``OptionError``."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise OptionError(f"--set {pair!r} is not NAME=VALUE, such as batch=256")
        found[name] = value_of(value)
    return found


def load_model(name: str, pairs: Sequence[str], *, real: bool = False) -> tuple[nn.Module, Any]:
    """Call what ``name`` names. On the meta device, unless ``real``: nothing is allocated.

    Raises ``OptionError`` when it can't be found or does not return (module, inputs).
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise OptionError(f"MODEL {name!r} is not package.module:callable")
    try:
        build = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"MODEL {name!r} can't be found: {error}") from error
    arguments = keywords(pairs)
    try:
        with torch.device("cpu" if real else "meta"):
            made = build(**arguments)
    except TypeError as error:
        raise OptionError(f"MODEL {name!r} can't be called with {arguments}: {error}") from error
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], nn.Module):
        raise OptionError(f"MODEL {name!r} must return (module, inputs)")
    return made[0], made[1]
