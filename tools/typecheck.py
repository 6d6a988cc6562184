"""Run mypy --strict over the library: ``python tools/typecheck.py``.

mypy runs no import hooks, so it cannot know that ``passes/`` is imported as ``karma_fx.passes``.
It is given a farm of links that is laid out as the package is imported, and its messages are
turned back into the paths of the repository.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAPPED = ("passes", "models", "tools")


def make_link_farm(root: Path) -> Path:
    """Lay out ``karma_fx`` with its mapped sub-packages in ``build/typecheck``, and return that."""
    farm = root / "build" / "typecheck"
    shutil.rmtree(farm / "karma_fx", ignore_errors=True)
    package = farm / "karma_fx"
    package.mkdir(parents=True)
    entries = [entry for entry in (root / "karma_fx").iterdir() if entry.name != "__pycache__"]
    for entry in [*entries, *(root / name for name in MAPPED)]:
        (package / entry.name).symlink_to(entry)
    return farm


def to_repository_path(line: str) -> str:
    """``karma_fx/passes/cost.py:3: error`` -> ``passes/cost.py:3: error``."""
    for name in MAPPED:
        if line.startswith(f"karma_fx/{name}/"):
            return line.removeprefix("karma_fx/")
    return line


def main() -> int:
    farm = make_link_farm(ROOT)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(ROOT / ".mypy_cache"), "-p", "karma_fx"]
    result = subprocess.run(command, cwd=farm, text=True, stdout=subprocess.PIPE, check=False)
    for line in result.stdout.splitlines():
        print(to_repository_path(line))
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
