"""The file on disk: where it is made, that it leaves nothing, and every way a disk can fail."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from karma_fx.errors import FarMemoryError
from karma_fx.runtime import disk
from karma_fx.runtime.disk import DiskTier, default_directory, file_system_of, go_direct
from karma_fx.runtime.slots import PAGE
from karma_fx.units import MIB
from tests.runtime.helpers import get, karma_threads, open_files, put, random_bytes

SHM = Path("/dev/shm")
needs_shm = pytest.mark.skipif(
    not SHM.is_dir() or file_system_of(SHM) != "tmpfs", reason="no tmpfs at /dev/shm"
)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskTier]:
    made = DiskTier(str(tmp_path))
    yield made
    made.close()
    assert karma_threads() == [] and open_files(tmp_path) == []


def failing(code: int, when: Callable[..., bool] = lambda *_: True, real: Any = None) -> Any:
    def call(*arguments: Any) -> Any:
        if when(*arguments):
            raise OSError(code, os.strerror(code))
        return real(*arguments)

    return call


def refuse_tmpfile(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)


def assert_works(tier: DiskTier) -> None:
    for nbytes in (1, 4097, 8 * MIB + 3):
        near = random_bytes(nbytes, nbytes)
        assert torch.equal(get(tier, put(tier, near)), near)


# Where it is made


def test_the_directory_is_empty_while_open_and_after(tmp_path: Path) -> None:
    tier = DiskTier(str(tmp_path))
    put(tier, random_bytes(MIB))
    assert list(tmp_path.iterdir()) == [] and len(open_files(tmp_path)) == 1
    assert os.fstat(tier._fd).st_mode & 0o777 == 0o600
    tier.close()
    assert list(tmp_path.iterdir()) == [] and open_files(tmp_path) == []


def test_without_o_tmpfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_tmpfile(monkeypatch)
    tier = DiskTier(str(tmp_path))
    assert list(tmp_path.iterdir()) == [] and len(open_files(tmp_path)) == 1
    assert "karma-" in open_files(tmp_path)[0]  # it did have a name
    assert_works(tier)
    tier.close()
    assert list(tmp_path.iterdir()) == [] and open_files(tmp_path) == []


def test_the_space_is_taken_by_reserve(tier: DiskTier) -> None:
    tier.reserve(3 * MIB + 1)
    assert os.fstat(tier._fd).st_blocks * 512 >= 3 * MIB + PAGE
    slot = tier.alloc(5 * MIB)  # more than was reserved
    assert os.fstat(tier._fd).st_size >= slot.offset + 5 * MIB


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(FarMemoryError, match=r"nowhere' is not a directory; make it"):
        DiskTier(str(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    with pytest.raises(FarMemoryError, match="is not a directory"):
        DiskTier(str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("code", "help_"), [(errno.EACCES, "that you can write to"), (errno.ENOSPC, "are free")]
)
def test_a_directory_that_takes_no_file(
    code: int, help_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", failing(code, lambda path, *_, **__: True))
    with pytest.raises(FarMemoryError, match="can't make a file") as caught:
        DiskTier(str(tmp_path))
    said = str(caught.value)
    assert os.strerror(code) in said and help_ in said and str(tmp_path) in said
    assert isinstance(caught.value.__cause__, OSError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(FarMemoryError, match="Permission denied"):
        DiskTier(str(tmp_path))


@needs_shm
def test_ram_is_no_disk() -> None:
    with pytest.raises(FarMemoryError, match="is a tmpfs, which is RAM"):
        DiskTier(str(SHM))


@needs_shm
def test_the_default_directory_is_not_ram(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert default_directory() == tmp_path
    monkeypatch.setenv("TMPDIR", str(SHM))
    assert default_directory() != SHM and not disk.is_ram(default_directory())
    monkeypatch.setattr(disk, "is_ram", lambda _: True)
    with pytest.raises(FarMemoryError, match="none of /dev/shm, /var/tmp"):
        default_directory()


def test_the_file_system_is_that_of_the_innermost_last_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    lines = ["disk / ext4 rw 0 0", "a /data xfs rw 0 0", "b /data tmpfs rw 0 0"]
    lines += ["c /data/my\\040disk btrfs rw 0 0", "d /d\u00e9p\u00f4t ramfs rw 0 0"]
    mounts.write_bytes("\n".join(lines).encode() + b"\ne /\xff\xfe nfs rw 0 0\n")
    expected = {
        "/": "ext4",
        "/database": "ext4",
        "/data/x": "tmpfs",
        "/data/my disk/x": "btrfs",
        "/d\u00e9p\u00f4t": "ramfs",
    }
    assert {place: file_system_of(Path(place), mounts) for place in expected} == expected
    assert file_system_of(Path("/"), tmp_path / "missing") == ""


# O_DIRECT


def test_direct_where_the_disk_allows_it(tier: DiskTier) -> None:
    flags = fcntl.fcntl(tier._fd, fcntl.F_GETFL)
    assert tier.direct == bool(flags & os.O_DIRECT)


@pytest.mark.parametrize("refusing", ["go_direct", "fcntl", "pwrite"])
def test_buffered_where_o_direct_is_refused(
    refusing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    with monkeypatch.context() as patched:
        if refusing == "go_direct":
            patched.setattr(disk, "go_direct", lambda fd: False)
        elif refusing == "fcntl":
            direct = lambda fd, command, flags=0: flags & os.O_DIRECT  # noqa: E731
            patched.setattr(fcntl, "fcntl", failing(errno.EINVAL, direct, fcntl.fcntl))
        else:
            patched.setattr(os, "pwrite", failing(errno.EINVAL))
        tier = DiskTier(str(tmp_path))
    assert not tier.direct and not fcntl.fcntl(tier._fd, fcntl.F_GETFL) & os.O_DIRECT
    real = os.fdatasync

    def sync(fd: int) -> None:
        synced.append(fd)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", sync)
    assert_works(tier)
    assert synced  # or the bytes would stay in RAM
    tier.close()


def test_a_failed_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without O_DIRECT a disk that loses bytes says so there, and nowhere else."""
    monkeypatch.setattr(disk, "go_direct", lambda fd: False)
    tier = DiskTier(str(tmp_path))
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    with pytest.raises(FarMemoryError, match="Input/output error"):
        put(tier, random_bytes(9))
    tier.close()


def test_a_disk_without_a_page_to_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    with pytest.raises(FarMemoryError, match=r"can't write.*No space left.*disk:DIR"):
        DiskTier(str(tmp_path))
    assert open_files(tmp_path) == []


def test_go_direct_reports_and_restores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "file", "wb+") as file:
        before = fcntl.fcntl(file, fcntl.F_GETFL)
        monkeypatch.setattr(os, "pwrite", failing(errno.EINVAL))
        assert go_direct(file.fileno()) is False
        assert fcntl.fcntl(file, fcntl.F_GETFL) == before


# Disks that fail


def test_a_full_disk(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    near = random_bytes(MIB)
    slot = put(tier, near)
    size = os.fstat(tier._fd).st_size
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        for use in (lambda: tier.reserve(50 * MIB), lambda: tier.alloc(50 * MIB)):
            with pytest.raises(FarMemoryError, match=r"can't take 5.*are free.*disk:DIR") as caught:
                use()
            assert isinstance(caught.value.__cause__, OSError)
    assert os.fstat(tier._fd).st_size == size
    assert torch.equal(get(tier, slot), near)
    assert_works(tier)  # once there is room again


def test_a_limit_on_file_sizes(tier: DiskTier) -> None:
    """A real refusal by the kernel, in the middle of the space asked for."""
    near = random_bytes(MIB)
    slot = put(tier, near)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * MIB, hard))
    try:
        with pytest.raises(FarMemoryError, match="File too large"):
            tier.alloc(16 * MIB)
        assert tier.alloc(MIB).offset == MIB  # what fits is still to be had
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert torch.equal(get(tier, slot), near)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["pwrite", "preadv"])
def test_a_failed_transfer(
    call: str, code: int, tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = random_bytes(20 * MIB)
    slot = put(tier, near)
    later = failing(code, lambda fd, data, at: at >= 16 * MIB, getattr(os, call))
    with monkeypatch.context() as patched:
        patched.setattr(os, call, later)
        verb = tier.store if call == "pwrite" else lambda n, s: tier.load(s, n)
        with pytest.raises(FarMemoryError, match=os.strerror(code)) as caught:
            verb(near.clone(), slot).wait()
    assert isinstance(caught.value.__cause__, FarMemoryError)
    assert isinstance(caught.value.__cause__.__cause__, OSError)
    assert_works(tier)


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("most", [PAGE, 3 * PAGE + 7, 99_999])
def test_short_transfers_are_continued(
    most: int, buffered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transfer may stop anywhere, also within a page."""
    if buffered:
        monkeypatch.setattr(disk, "go_direct", lambda fd: False)
    tier = DiskTier(str(tmp_path))
    pwrite, preadv, calls = os.pwrite, os.preadv, []

    def short_write(fd: int, data: memoryview, at: int) -> int:
        calls.append(at)
        return min(most, pwrite(fd, data, at))

    def short_read(fd: int, buffers: list[memoryview], at: int) -> int:
        calls.append(at)
        got = preadv(fd, buffers, at)
        buffers[0][most:] = bytes(max(0, len(buffers[0]) - most))
        return min(most, got)

    monkeypatch.setattr(os, "pwrite", short_write)
    monkeypatch.setattr(os, "preadv", short_read)
    near = random_bytes(MIB // 2 + 5)
    assert torch.equal(get(tier, put(tier, near)), near)
    assert len(calls) > 4 and all(at % PAGE == 0 for at in calls)
    tier.close()


@pytest.mark.parametrize("call", ["pwrite", "preadv"])
def test_transfers_that_move_nothing(
    call: str, tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = put(tier, random_bytes(9))
    monkeypatch.setattr(os, call, lambda *_: 0)
    with pytest.raises(FarMemoryError, match="stopped after 0 bytes"):
        put(tier, random_bytes(9)) if call == "pwrite" else get(tier, slot)


def test_a_descriptor_is_not_used_after_close(tmp_path: Path) -> None:
    """The number may be another file's by then, also for a copy that outlived ``close``."""
    tier = DiskTier(str(tmp_path))
    number = tier._fd
    tier.close()
    other = os.open(tmp_path / "other", os.O_CREAT | os.O_RDWR)
    os.dup2(other, number)
    with pytest.raises(FarMemoryError, match="Bad file descriptor"):
        tier._write(random_bytes(PAGE).data_ptr(), 0, PAGE)
    assert os.path.getsize(tmp_path / "other") == 0
    for fd in {other, number}:
        os.close(fd)


KILLED = """
import sys, torch
from karma_fx.runtime import disk
tiers = [disk.DiskTier(sys.argv[1])]
del disk.os.O_TMPFILE
tiers.append(disk.DiskTier(sys.argv[1]))
near = torch.zeros(9 << 20, dtype=torch.uint8)
slots = [tier.alloc(near.numel()) for tier in tiers]
while True:
    for copy in [tier.store(near, slot) for tier, slot in zip(tiers, slots)]:
        copy.wait()
    print("ready", flush=True)
"""


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert list(tmp_path.iterdir()) == []
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
