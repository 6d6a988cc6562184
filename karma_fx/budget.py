"""How much near memory there is, when the user does not say."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from karma_fx.options import Options

_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2**63."""


def available_bytes() -> int:
    """The least of available RAM and the head-room in the cgroup (v1 and v2) and RLIMIT_DATA."""
    return max(0, min(_available_ram(), _cgroup_headroom(), _rlimit_headroom()))


def _field(path: Path, name: str) -> int | None:
    """A value in kB out of a file of the /proc/meminfo kind, in bytes."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def _available_ram() -> int:
    found = _field(Path("/proc/meminfo"), "MemAvailable")
    return _UNLIMITED if found is None else found


def _cgroup_headroom(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int:
    """The smallest of limit minus use over this process's cgroup and its ancestors."""
    best = _UNLIMITED
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return best
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            best = min(best, _walk(root, path, "memory.max", "memory.current"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            best = min(best, _walk(root / "memory", path, *names))
    return best


def _walk(root: Path, path: str, limit_name: str, usage_name: str) -> int:
    best = _UNLIMITED
    folder = root / path.lstrip("/")
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError, ValueError):
            limit = int((place / limit_name).read_text())
            if limit < _UNLIMITED:
                best = min(best, limit - int((place / usage_name).read_text()))
        if place == root:
            break
    return best


def _rlimit_headroom() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    used = _field(Path("/proc/self/status"), "VmData")
    if soft == resource.RLIM_INFINITY or used is None:
        return _UNLIMITED
    return soft - used


def budget_bytes(options: Options, held_bytes: int, device_bytes: int | None = None) -> int:
    """The byte budget of a graph whose inputs and parameters hold ``held_bytes`` already: what the
    user gave, or what is free plus that; less ``reserve``. ``device_bytes`` is what a device has
    that is only described."""
    memory = options.memory
    if memory is None or isinstance(memory, float):
        share = 1.0 if memory is None else memory
        free = available_bytes() + held_bytes if device_bytes is None else device_bytes
        return int(share * free) - options.reserve
    return memory - options.reserve
