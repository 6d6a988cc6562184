"""Where the budget comes from when none is given: cgroups v1 and v2, RLIMIT_DATA, /proc/meminfo."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from karma_fx import budget
from karma_fx.budget import (
    _UNLIMITED,
    _cgroup_headroom,
    _field,
    _rlimit_headroom,
    available_bytes,
    budget_bytes,
)
from karma_fx.options import Options
from karma_fx.units import GIB, KIB, MIB

V1_NO_LIMIT = 9223372036854771712


def write(folder: Path, **values: object) -> None:
    """``memory_max=1`` is the file memory.max."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name.replace("memory_", "memory.", 1)).write_text(f"{value}\n")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


def test_v2(root: Path, own: Path) -> None:
    own.write_text("0::/user/job\n")
    write(root / "user" / "job", memory_max=10 * MIB, memory_current=4 * MIB)
    assert _cgroup_headroom(root, own) == 6 * MIB


def test_v2_the_tightest_ancestor_counts(root: Path, own: Path) -> None:
    own.write_text("0::/user/slice/job\n")
    write(root / "user" / "slice" / "job", memory_max=10 * MIB, memory_current=4 * MIB)
    write(root / "user" / "slice", memory_max=20 * MIB, memory_current=19 * MIB)
    write(root / "user", memory_max="max", memory_current=30 * MIB)
    write(root.parent, memory_max=1, memory_current=1)  # outside of the hierarchy
    assert _cgroup_headroom(root, own) == MIB


def test_v2_in_a_container_the_root_has_the_limit(root: Path, own: Path) -> None:
    own.write_text("0::/\n")
    write(root, memory_max=8 * MIB, memory_current=9 * MIB)
    assert _cgroup_headroom(root, own) == -MIB
    own.write_text("0::/../../another/job\n")  # seen from within another namespace
    assert _cgroup_headroom(root, own) == -MIB


def test_v1(root: Path, own: Path) -> None:
    own.write_text("5:cpu,cpuacct:/job\n4:memory:/job:with:colons\n0::/\n")
    folder = root / "memory" / "job:with:colons"
    write(folder, memory_limit_in_bytes=5 * MIB, memory_usage_in_bytes=2 * MIB)
    write(root / "memory", memory_limit_in_bytes=V1_NO_LIMIT, memory_usage_in_bytes=MIB)
    write(root / "job", memory_max=1, memory_current=1)  # not ours: the cpu controller's
    assert _cgroup_headroom(root, own) == 3 * MIB


def test_v1_where_the_path_is_that_of_the_host(root: Path, own: Path) -> None:
    own.write_text("7:hugetlb,memory:/docker/0123abcd\n")
    write(root / "memory", memory_limit_in_bytes=5 * MIB, memory_usage_in_bytes=MIB)
    assert _cgroup_headroom(root, own) == 4 * MIB


def test_v1_and_v2_together(root: Path, own: Path) -> None:
    own.write_text("4:memory:/a\n0::/b\n")
    write(root / "memory" / "a", memory_limit_in_bytes=5 * MIB, memory_usage_in_bytes=MIB)
    write(root / "b", memory_max=3 * MIB, memory_current=MIB)
    assert _cgroup_headroom(root, own) == 2 * MIB


@pytest.mark.parametrize("limit", ["max", "", "rubbish", V1_NO_LIMIT])
def test_no_limit(limit: object, root: Path, own: Path) -> None:
    own.write_text("4:memory:/a\n0::/a\n")
    write(root / "a", memory_max=limit, memory_current=MIB)
    write(root / "memory" / "a", memory_limit_in_bytes=limit, memory_usage_in_bytes=MIB)
    assert _cgroup_headroom(root, own) == _UNLIMITED


def test_no_cgroups(root: Path, own: Path) -> None:
    assert _cgroup_headroom(root, own) == _UNLIMITED  # no /proc/self/cgroup
    own.write_text("")
    assert _cgroup_headroom(root, own) == _UNLIMITED
    own.write_text("0::/job\n")
    write(root / "job", memory_max=MIB)  # the use is unknown
    assert _cgroup_headroom(root, own) == _UNLIMITED


def test_a_field_of_meminfo(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:  100 kB\nMemAvailable:   12 kB\nBad: x kB\nEmpty:\n")
    assert _field(path, "MemAvailable") == 12 * KIB
    assert [_field(path, name) for name in ("Mem", "Bad", "Empty")] == [None] * 3
    assert _field(tmp_path / "missing", "MemAvailable") is None


def test_rlimit_data() -> None:
    """The real limit, and what the kernel counts against it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = _field(Path("/proc/self/status"), "VmData")
    if used is None or hard != resource.RLIM_INFINITY:
        pytest.skip("no VmData, or a hard limit already")
    resource.setrlimit(resource.RLIMIT_DATA, (used + 4 * GIB, hard))
    try:
        assert abs(_rlimit_headroom() - 4 * GIB) < 64 * MIB
        assert available_bytes() <= _rlimit_headroom() + 64 * MIB
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    assert _rlimit_headroom() == _UNLIMITED


@pytest.mark.parametrize("least", ["_available_ram", "_cgroup_headroom", "_rlimit_headroom"])
def test_the_least_counts(least: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_available_ram", "_cgroup_headroom", "_rlimit_headroom"):
        monkeypatch.setattr(budget, name, lambda name=name: MIB if name == least else GIB)
    assert available_bytes() == MIB
    monkeypatch.setattr(budget, least, lambda: -MIB)
    assert available_bytes() == 0


def test_budget_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "available_bytes", lambda: 6 * MIB)
    assert budget_bytes(Options(reserve=MIB), held_bytes=2 * MIB) == 7 * MIB
    assert budget_bytes(Options(memory=0.5, reserve=MIB), held_bytes=2 * MIB) == 3 * MIB
    assert budget_bytes(Options(memory=5 * MIB, reserve=MIB), held_bytes=2 * MIB) == 4 * MIB
