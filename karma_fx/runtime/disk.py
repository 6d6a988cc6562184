"""Far memory in a file on disk, past the page cache.

The file has no name (or loses it at once), so nothing is left behind however the process ends. It
is read and written with O_DIRECT through a page-aligned buffer a direction: a write through the
page cache would hold the same bytes in RAM that were to leave it. ``mmap`` would do too, were it
not for the SIGBUS on a full disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from karma_fx.errors import FarMemoryError
from karma_fx.runtime.queued import QueuedTier
from karma_fx.runtime.slots import PAGE
from karma_fx.units import MIB, format_bytes

BUFFER_BYTES = 8 * MIB
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_RAM_FILE_SYSTEMS = ("tmpfs", "ramfs", "devtmpfs")


def file_system_of(directory: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The kind of file system that ``directory`` is on ("ext4", "tmpfs", "" where unknown)."""
    try:
        lines = [line.split() for line in mounts.read_bytes().splitlines()]
    except OSError:
        return ""
    place, best, kind = directory.resolve(), -1, ""
    for fields in lines:
        escaped = fields[1].decode("unicode_escape")  # spaces are written \040
        point = Path(os.fsdecode(escaped.encode("latin-1")))
        if len(point.parts) >= best and place.is_relative_to(point):
            # The last mount on a point hides the others.
            best, kind = len(point.parts), fields[2].decode()
    return kind


def is_ram(directory: Path) -> bool:
    """True where "disk" would be RAM."""
    return file_system_of(directory) in _RAM_FILE_SYSTEMS


def default_directory() -> Path:
    """The first of $TMPDIR, /var/tmp, /tmp and the working directory that is a writable disk."""
    given = os.environ.get("TMPDIR")
    places = [Path(p) for p in (given, "/var/tmp", "/tmp", os.getcwd()) if p]
    for place in places:
        if place.is_dir() and os.access(place, os.W_OK | os.X_OK) and not is_ram(place):
            return place
    raise FarMemoryError(
        f"none of {', '.join(map(str, places))} is a writable directory on a disk; "
        "name one with options={'far': 'disk:DIR'}"
    )


def _named_directory(directory: str) -> Path:
    place = Path(directory)
    if not place.is_dir():
        raise FarMemoryError(
            f"far memory: {directory!r} is not a directory; make it, or name another"
        )
    if is_ram(place):
        raise FarMemoryError(
            f"far memory: {directory!r} is a {file_system_of(place)}, which is RAM; name a "
            "directory on a disk, or use far='ram' if that is what you want"
        )
    return place


def open_private(directory: Path) -> int:
    """A descriptor of a new file in ``directory`` that has no name and that only we can open."""
    if hasattr(os, "O_TMPFILE"):
        with contextlib.suppress(OSError):  # not on every file system
            return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    folder = tempfile.mkdtemp(prefix="karma-", dir=directory)
    path = os.path.join(folder, "far")
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.unlink(path)
    finally:
        os.rmdir(folder)
    return fd


def go_direct(fd: int) -> bool:
    """Switch ``fd`` to O_DIRECT; False where the file system refuses a direct write of a page."""
    if not hasattr(os, "O_DIRECT"):
        return False
    import fcntl

    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        with mmap.mmap(-1, PAGE) as page:
            os.pwrite(fd, page, 0)
    except OSError as error:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        if error.errno in _FULL:
            raise
        return False
    return True


class _Buffer:
    """A page-aligned buffer, in a SHARED mapping, which RLIMIT_DATA does not count."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, BUFFER_BYTES)
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))


class DiskTier(QueuedTier):
    """A private file in ``directory`` (None: ``default_directory()``).

    Raises ``FarMemoryError`` when the directory is missing, unwritable, full or RAM.
    """

    name = "disk"

    def __init__(self, directory: str | None = None) -> None:
        super().__init__()
        self.directory = _named_directory(directory) if directory else default_directory()
        try:
            self._fd = open_private(self.directory)
        except OSError as error:
            raise self._error("can't make a file", error) from error
        try:
            self.direct = go_direct(self._fd)
        except OSError as error:
            os.close(self._fd)
            raise self._error("can't write", error) from error
        self._out_buffer, self._in_buffer = _Buffer(), _Buffer()

    def _extend(self, nbytes: int) -> None:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, 0, nbytes)
            else:
                os.ftruncate(self._fd, nbytes)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)  # give back what was got of it
            raise self._error(f"can't take {format_bytes(nbytes)}", error) from error

    def _write(self, address: int, offset: int, nbytes: int) -> None:
        buffer = self._out_buffer
        for start in range(0, nbytes, BUFFER_BYTES):
            size = min(BUFFER_BYTES, nbytes - start)
            ctypes.memmove(buffer.address, address + start, size)
            view = buffer.view[: -(-size // PAGE) * PAGE]
            self._whole("write", view, offset + start, lambda v, at: os.pwrite(self._fd, v, at))
        if not self.direct:
            try:  # past the page cache, and only here does a disk tell that it failed
                getattr(os, "fdatasync", os.fsync)(self._fd)
            except OSError as error:
                raise self._error(f"can't write {format_bytes(nbytes)}", error) from error
        self._forget(offset, nbytes)

    def _read(self, offset: int, address: int, nbytes: int) -> None:
        buffer = self._in_buffer
        for start in range(0, nbytes, BUFFER_BYTES):
            size = min(BUFFER_BYTES, nbytes - start)
            view = buffer.view[: -(-size // PAGE) * PAGE]
            self._whole("read", view, offset + start, lambda v, at: os.preadv(self._fd, [v], at))
            ctypes.memmove(address + start, buffer.address, size)
        self._forget(offset, nbytes)

    def _whole(
        self, verb: str, view: memoryview, at: int, step: Callable[[memoryview, int], int]
    ) -> None:
        """Repeat ``step`` until all of ``view`` has been moved. A direct transfer that stops within
        a page is taken up again at the page's start."""
        done = 0
        while done < len(view):
            try:
                moved = step(view[done:], at + done)
            except OSError as error:
                raise self._error(f"can't {verb} {format_bytes(len(view))}", error) from error
            moved -= (done + moved) % PAGE if done + moved < len(view) else 0
            if moved <= 0:
                raise FarMemoryError(
                    f"far memory in {str(self.directory)!r}: a {verb} of {format_bytes(len(view))} "
                    f"stopped after {done} bytes; is the disk full?"
                )
            done += moved

    def _forget(self, offset: int, nbytes: int) -> None:
        """Without O_DIRECT, ask the kernel not to keep the bytes in RAM."""
        if not self.direct and hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, offset, nbytes, os.POSIX_FADV_DONTNEED)

    def _error(self, what: str, error: OSError) -> FarMemoryError:
        place = str(self.directory)
        if error.errno in _FULL:
            with contextlib.suppress(OSError):
                what += f"; {format_bytes(shutil.disk_usage(place).free)} are free"
            help_ = "free some space there, or name a directory on a larger disk with"
        else:
            help_ = "name a directory that you can write to with"
        return FarMemoryError(
            f"far memory in {place!r} {what} ({error.strerror}); {help_} "
            "options={'far': 'disk:DIR'}"
        )

    def _shut(self) -> None:
        fd, self._fd = self._fd, -1  # a copy that hangs must not write to the number's next file
        os.close(fd)
