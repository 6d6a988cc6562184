"""The options of ``torch.compile(..., backend="karma", options={...})``, checked.

Every option can also come from the environment (``KARMA_MEMORY=6GiB``); ``options`` wins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from karma_fx.errors import OptionError
from karma_fx.profile.devices import find_device
from karma_fx.strategies.registry import STRATEGIES as _STRATEGIES
from karma_fx.units import parse_bytes

STRATEGIES = tuple(_STRATEGIES)
FAR = ("disk", "disk:DIR", "ram", "poison")
INNER = ("eager",)
PROFILES = ("measure", "estimate")

_EXAMPLES = {
    "memory": 'bytes, a size such as "6GiB", or a fraction of what is free such as 0.5',
    "far": '"disk", "disk:DIR", "ram" (far memory in RAM) or "poison" (for tests)',
    "strategy": ", ".join(f'"{s}"' for s in STRATEGIES),
    "inner": '"eager"',
    "profile": '"measure", "estimate", a device such as "h100-80gb", or a device file',
    "plan": "the path of a plan file to replay",
    "export": "the path to write the plan to",
    "reserve": 'near bytes left to others, such as "512MiB"',
    "debug": '"" or "print" (print the graph after every pass)',
}


@dataclass(frozen=True, slots=True)
class Options:
    """See ``karma_fx.backend``. ``memory`` is in bytes, or a fraction below 1 of what is free, or
    None for all that is free; ``reserve`` is in bytes."""

    memory: int | float | None = None
    far: str = "disk"
    strategy: str = "karma"
    inner: str = "eager"
    profile: str = "measure"
    plan: str | None = None
    export: str | None = None
    reserve: int = 0
    debug: str = ""


def parse_options(given: Mapping[str, Any] | None = None) -> Options:
    """Check ``given`` and the environment. Raises ``OptionError`` naming what is valid."""
    names = [f.name for f in fields(Options)]
    values: dict[str, Any] = {}
    for name in names:
        variable = f"KARMA_{name.upper()}"
        if os.environ.get(variable):
            values[name] = os.environ[variable]
    for name in given or {}:
        if name not in names:
            valid = "\n".join(f"  {n}: {_EXAMPLES[n]}" for n in names)
            raise OptionError(f"karma has no option {name!r}; it has\n{valid}")
    values.update({k: v for k, v in (given or {}).items() if v is not None})
    return Options(**{name: _PARSERS[name](value) for name, value in values.items()})


def _bad(name: str, value: Any, why: str = "") -> OptionError:
    return OptionError(f"karma option {name}={value!r} is not valid{why}; give {_EXAMPLES[name]}")


def _memory(value: Any) -> int | float:
    if isinstance(value, str):
        try:
            value = float(value) if value.strip().startswith("0.") else parse_bytes(value)
        except ValueError as error:
            raise _bad("memory", value) from error
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value > 0 or (isinstance(value, float) and not _float_ok(value)):
        raise _bad("memory", value)
    return value if isinstance(value, int) or value < 1 else int(value)


def _float_ok(value: float) -> bool:
    return value < 1 or value.is_integer()


def _reserve(value: Any) -> int:
    if isinstance(value, str):
        try:
            value = parse_bytes(value)
        except ValueError as error:
            raise _bad("reserve", value) from error
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _bad("reserve", value)
    return value


def _far(value: Any) -> str:
    if isinstance(value, str) and (value in FAR[:1] + FAR[2:] or value.startswith("disk:")):
        return value
    raise _bad("far", value)


def _one_of(name: str, choices: tuple[str, ...]) -> Any:
    def parse(value: Any) -> str:
        if value not in choices:
            raise _bad(name, value)
        return str(value)

    return parse


def _profile(value: Any) -> str:
    if value in PROFILES:
        return str(value)
    try:
        return os.fspath(value) if find_device(os.fspath(value)) else ""
    except TypeError as error:
        raise _bad("profile", value) from error
    except OptionError as error:
        raise _bad("profile", value, f" ({error})") from error


def _path(name: str) -> Any:
    def parse(value: Any) -> str:
        if not isinstance(value, str | os.PathLike) or not os.fspath(value):
            raise _bad(name, value)
        return str(os.fspath(value))

    return parse


_PARSERS = {
    "memory": _memory,
    "far": _far,
    "strategy": _one_of("strategy", STRATEGIES),
    "inner": _one_of("inner", INNER),
    "profile": _profile,
    "plan": _path("plan"),
    "export": _path("export"),
    "reserve": _reserve,
    "debug": _one_of("debug", ("", "print")),
}
