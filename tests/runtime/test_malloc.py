"""What tensors held goes back to the system, which glibc alone would not do."""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from karma_fx.runtime import malloc
from karma_fx.units import MIB
from tests.runtime.helpers import python

CHURN = """
import os, sys, torch

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20

if sys.argv[1] == "returned":
    from karma_fx.runtime.malloc import return_freed_memory
    assert return_freed_memory()
torch.ones(4 << 20, dtype=torch.uint8)  # as it is freed, glibc's threshold goes up to 4 MiB
before = rss()
tensors = [torch.ones(2 << 20, dtype=torch.uint8) for _ in range(100)]
full = rss()
del tensors[:-1]  # the last one is at the end of the heap
print(full - before, rss() - before)
"""


def churn(how: str) -> tuple[int, int]:
    """MiB that 100 tensors of 2 MiB took, and MiB still resident with all but the last freed."""
    done = python(CHURN, how)
    assert (done.returncode, done.stderr) == (0, "")
    full, kept = map(int, done.stdout.split())
    return full, kept


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_freed_tensors_leave_the_process() -> None:
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("not glibc")
    with ThreadPoolExecutor() as both:
        (full, kept), (full_returned, kept_returned) = both.map(churn, ["kept", "returned"])
    assert full > 150 and kept > 150  # or this test shows nothing
    assert full_returned > 150 and kept_returned < 20


def test_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert malloc.return_freed_memory() is False

    def missing(_: None) -> None:
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert malloc.return_freed_memory() is False


def test_the_threshold_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[int, int] = {}

    class Library:
        @staticmethod
        def mallopt(option: int, value: int) -> int:
            calls[option] = value
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library)
    assert malloc.return_freed_memory(3 * MIB) is True
    assert calls[-3] == 3 * MIB  # M_MMAP_THRESHOLD
