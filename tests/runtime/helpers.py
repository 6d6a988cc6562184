"""Shared by the tests of the tiers: bytes, threads, descriptors, forks and fresh processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from karma_fx.runtime.throttled import ThrottledTier
from karma_fx.runtime.tier import Slot, Tier
from karma_fx.units import MIB

PATIENCE_S = 20.0
SIZES = (0, 1, 4095, 4096, 4097, 8 * MIB + 3, 20 * MIB)


def random_bytes(nbytes: int, seed: int = 0, misalign: int = 0) -> torch.Tensor:
    """Flat bytes; their address is ``misalign`` off that of an allocation."""
    whole = torch.empty(nbytes + misalign, dtype=torch.uint8)
    whole.random_(generator=torch.Generator().manual_seed(seed))
    return whole[misalign:]


def fast(inner: Tier, **options: float) -> ThrottledTier:
    """``inner`` behind a link that costs no time but where ``options`` say so."""
    rates = {"out_bytes_per_s": 1e12, "in_bytes_per_s": 1e12}
    return ThrottledTier(inner, **{**rates, **options})  # type: ignore[arg-type]


def put(tier: Tier, near: torch.Tensor) -> Slot:
    slot = tier.alloc(near.numel())
    tier.store(near, slot).wait()
    return slot


def get(tier: Tier, slot: Slot, misalign: int = 0) -> torch.Tensor:
    near = torch.zeros(slot.nbytes + misalign, dtype=torch.uint8)[misalign:]
    tier.load(slot, near).wait()
    return near


older_threads: set[threading.Thread] = set()  # filled by conftest.py


def karma_threads() -> list[str]:
    """The workers that this test started and that still run."""
    new = set(threading.enumerate()) - older_threads
    return [t.name for t in new if t.name.startswith("karma-")]


def open_files(directory: Path) -> list[str]:
    """What this process holds open under ``directory``, files without a name too."""
    links = [fd for fd in Path("/proc/self/fd").iterdir() if os.path.lexists(fd)]
    return [name for name in map(os.readlink, links) if name.startswith(str(directory))]


@contextmanager
def background(run: Callable[[], object]) -> Iterator[threading.Thread]:
    """``run`` in a thread that must have ended soon after the block."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "hangs"


def in_child(run: Callable[[], object]) -> str:
    """How ``run`` ends in a forked child: the text of its error or of its result."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch has threads
        pid = os.fork()
    if pid == 0:
        signal.alarm(int(PATIENCE_S))
        try:
            said = str(run())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0, "the child was killed: it hung"
    return said


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)
