"""Profiled numbers on disk: one JSON file per device and torch version, shared by all processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import torch

VERSION = 2
"""Of how costs are measured; older figures are not used."""


def cache_directory() -> Path:
    """``$KARMA_CACHE_DIR``, or ``karma_fx`` under the user's cache directory."""
    if given := os.environ.get("KARMA_CACHE_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "karma_fx"


def machine_name() -> str:
    """What a profile holds for: processor, threads, torch."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = (x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
        model = next(names, model)
    return f"{model}|{torch.get_num_threads()} threads|torch {torch.__version__}"


class Store:
    """A dict of JSON values that outlives the process. Losing it costs time, never correctness."""

    def __init__(self, path: Path | None = None) -> None:
        digest = hashlib.sha256(f"{machine_name()}|{VERSION}".encode()).hexdigest()[:16]
        self.path = path or cache_directory() / f"profile-{digest}.json"
        self._values: dict[str, Any] = _read(self.path)
        self._fresh: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def put(self, key: str, value: Any) -> None:
        self._values[key] = self._fresh[key] = value

    def flush(self) -> None:
        """Merge what was measured here into the file, atomically. An unwritable cache is fine."""
        if not self._fresh:
            return
        merged = {**_read(self.path), **self._fresh}
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")
            with os.fdopen(handle, "w") as file:
                json.dump(merged, file)
            os.replace(name, self.path)
        self._fresh.clear()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
