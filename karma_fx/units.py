"""Bytes and microseconds, in and out of text."""

from __future__ import annotations

import re

KIB, MIB, GIB, TIB = (1 << s for s in (10, 20, 30, 40))

_SUFFIX = {
    "": 1, "b": 1,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """``"6GiB"`` -> 6442450944. Suffixes: B, KiB..TiB (powers of 1024), kB..TB (of 1000).

    Raises ``ValueError`` when ``text`` is not a size.
    """
    match = _SIZE.fullmatch(text)
    factor = _SUFFIX.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f'not a size: {text!r}; write for example "6GiB", "512MiB" or 1073741824')
    return int(float(match[1]) * factor)


def format_bytes(n: int | float) -> str:
    """``1610612736`` -> ``"1.50 GiB"``."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(n) >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n:.0f} B"


def format_us(us: float) -> str:
    """``1500.0`` -> ``"1.50 ms"``."""
    if abs(us) >= 1e6:
        return f"{us / 1e6:.2f} s"
    if abs(us) >= 1e3:
        return f"{us / 1e3:.2f} ms"
    return f"{us:.0f} us"
