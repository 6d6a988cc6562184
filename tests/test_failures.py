"""Promise 3: a failure is a named error at the step that met it; nothing is lost or left behind."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from karma_fx.errors import FarMemoryError
from karma_fx.runtime.parcel import live_parcels
from tests.harness import build

OPTIONS = {"memory": "1GiB", "strategy": "offload"}


def compiled(far: str = "disk") -> tuple[nn.Module, Any, tuple[Any, ...]]:
    module, inputs = build("mlp")
    options = {**OPTIONS, "far": far}
    return module, torch.compile(module, backend="karma", options=options), inputs


def descriptors() -> set[str]:
    return {os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if os.path.lexists(fd)}


def karma_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("karma-")]


def state(module: nn.Module) -> list[torch.Tensor]:
    return [t.detach().clone() for t in [*module.parameters(), *module.buffers()]]


def assert_unchanged(before: list[torch.Tensor], module: nn.Module) -> None:
    assert all(torch.equal(a, b) for a, b in zip(before, state(module), strict=True))


def test_everything_ends_with_the_last_graph(tmp_path: Path) -> None:
    before = descriptors()
    _, step, inputs = compiled(f"disk:{tmp_path}")
    step(*inputs).backward()
    assert karma_threads() and len(descriptors() - before) >= 1
    assert list(tmp_path.iterdir()) == []  # the file has no name
    del step
    torch._dynamo.reset()
    gc.collect()
    assert karma_threads() == []
    assert not [path for path in descriptors() - before if str(tmp_path) in path]


def test_a_loss_without_backward_leaks_nothing() -> None:
    module, step, inputs = compiled()
    for _ in range(3):
        loss = step(*inputs)
        assert live_parcels() > 0
        del loss
        gc.collect()
        assert live_parcels() == 0
    step(*inputs).backward()
    assert all(p.grad is not None for p in module.parameters())
    assert live_parcels() == 0


def test_an_exception_between_forward_and_backward() -> None:
    module, step, inputs = compiled()
    before = state(module)

    def fails() -> None:
        loss = step(*inputs)
        raise RuntimeError(f"a user's bug, at loss {loss.item():.1f}")

    with pytest.raises(RuntimeError, match="a user's bug"):
        fails()
    gc.collect()
    assert live_parcels() == 0
    assert_unchanged(before, module)
    step(*inputs).backward()


def test_an_exception_in_the_middle_of_backward() -> None:
    module, step, inputs = compiled()

    def fail(grad: torch.Tensor) -> None:
        raise RuntimeError("a hook's bug")

    loss = step(*inputs)
    loss.register_hook(fail)
    with pytest.raises(RuntimeError, match="a hook's bug"):
        loss.backward()
    assert all(p.grad is None for p in module.parameters())
    del loss
    gc.collect()
    assert live_parcels() == 0


@pytest.mark.parametrize("call", ["pwrite", "preadv"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_io_errors_are_named_and_the_next_step_works(
    call: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, step, inputs = compiled()
    step(*inputs).backward()
    module.zero_grad()
    before = state(module)

    def fail(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(FarMemoryError, match=os.strerror(code)):
            step(*inputs).backward()
    gc.collect()
    assert live_parcels() == 0
    assert_unchanged(before, module)
    assert all(p.grad is None for p in module.parameters())
    step(*inputs).backward()
    assert all(p.grad is not None for p in module.parameters())


def test_a_full_disk_is_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module, step, inputs = compiled()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(FarMemoryError, match="No space left") as caught:
            step(*inputs)
    assert "are free" in str(caught.value) and "disk:DIR" in str(caught.value)
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("directory", ["/nowhere/at/all", "/proc"])
def test_a_bad_directory_is_named(directory: str) -> None:
    _, step, inputs = compiled(f"disk:{directory}")
    with pytest.raises(FarMemoryError, match=directory):
        step(*inputs)


KILLED = """
import sys, torch
from tests.harness import build
module, inputs = build("mlp")
options = {"memory": "1GiB", "strategy": "offload", "far": "disk:" + sys.argv[1]}
step = torch.compile(module, backend="karma", options=options)
step(*inputs).backward()
print("ready", flush=True)
while True:
    step(*inputs).backward()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_process_leaves_nothing(how: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert list(tmp_path.iterdir()) == []
        time.sleep(0.05)
        process.send_signal(how)
        process.wait(timeout=20)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []


def test_a_process_ends_by_itself() -> None:
    """Nobody closes anything: exit status 0, at once, and not a word."""
    code = KILLED[: KILLED.index("while True")]
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, "/var/tmp"], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")
    assert time.monotonic() - start < 100
