"""A queue of copies, done one after the other by a thread of its own."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import traceback
import weakref
from collections.abc import Callable

from karma_fx.errors import FarMemoryError

CLOSE_TIMEOUT_S = 10.0
"""How long ``close`` waits for the copy in hand. A disk that hangs longer must not hang exit."""

EXIT_TIMEOUT_S = 1.0
"""The same for what nobody closed, when the process ends."""


def check_process(owner: int) -> None:
    """Raise ``FarMemoryError`` in a process that was forked from ``owner``: it has no threads."""
    if os.getpid() != owner:
        raise FarMemoryError(
            "this far memory belongs to the process that this one was forked from; "
            "compile the model in the process that trains it"
        )


class Copy:
    """A copy in the queue of a ``Worker``; implements ``tier.Transfer``."""

    __slots__ = ("_ended", "_error", "_process", "_run")

    def __init__(self, run: Callable[[], None]) -> None:
        self._run: Callable[[], None] | None = run
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._process = os.getpid()

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> None:
        if not self._ended.is_set():
            check_process(self._process)
        self._ended.wait()
        if isinstance(self._error, FarMemoryError):
            raise FarMemoryError(*self._error.args) from self._error
        if self._error is not None:
            raise FarMemoryError(f"a far-memory transfer failed: {self._error}") from self._error

    def perform(self) -> None:
        """Run, and remember how it ended. Lets go of the near tensor in any case."""
        run, self._run = self._run, None
        assert run is not None
        try:
            run()
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # of the near tensor
            self._error = error
        del run  # this frame is in the traceback too
        self._end()

    def cancel(self) -> None:
        """End without running."""
        self._error = FarMemoryError("far memory was closed before the transfer ran")
        self._end()

    def _end(self) -> None:
        self._run = None
        self._ended.set()


class Worker:
    """One direction of a link. The thread starts with the first copy and ends with ``close``.

    The thread is a daemon, so that a process ends even where a copy hangs.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._queue: queue.SimpleQueue[Copy | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False

    def submit(self, run: Callable[[], None]) -> Copy:
        """Queue ``run``, which must hold references to all that it touches; as arguments (of a
        ``partial``) rather than in a closure, which the traceback of a failure would keep."""
        check_process(self._process)
        copy = Copy(run)
        with self._lock:
            if self._closed:
                raise FarMemoryError("far memory is closed")
            if self._thread is None:
                arguments = (self._queue,)
                self._thread = threading.Thread(
                    target=_work, args=arguments, name=self.name, daemon=True
                )
                self._thread.start()
                _started.add(self)
            self._queue.put(copy)
        return copy

    def close(self, timeout_s: float | None = None) -> None:
        """Cancel what has not begun, and wait for the copy in hand. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(queue.Empty):
                while (copy := self._queue.get_nowait()) is not None:
                    copy.cancel()
            self._queue.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_TIMEOUT_S if timeout_s is None else timeout_s)


_started: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    """Python ends daemon threads wherever they are; while one frees a tensor, that is an abort."""
    for worker in list(_started):
        if worker._process == os.getpid():  # a forked child has no such threads
            worker.close(EXIT_TIMEOUT_S)


def _work(copies: queue.SimpleQueue[Copy | None]) -> None:
    """The thread's whole life. Holds no reference to its ``Worker``, nor to a copy while idle."""
    while (copy := copies.get()) is not None:
        copy.perform()
        del copy
