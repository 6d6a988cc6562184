"""The queue of copies: order, failures, close, interrupts and forks."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from karma_fx.errors import FarMemoryError
from karma_fx.runtime import worker as worker_module
from karma_fx.runtime.worker import Worker
from tests.runtime.helpers import PATIENCE_S, background, in_child, karma_threads

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks")


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("karma-test")
    yield made
    made.close()
    assert karma_threads() == []


class Busy:
    """Holds the worker in a copy until ``release`` is set."""

    def __init__(self, worker: Worker) -> None:
        self.began, self.release = threading.Event(), threading.Event()
        self.copy = worker.submit(self.run)
        assert self.began.wait(PATIENCE_S)

    def run(self) -> None:
        self.began.set()
        assert self.release.wait(PATIENCE_S)


def raising(error: BaseException) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


def await_no_threads() -> None:
    end = time.monotonic() + PATIENCE_S
    while karma_threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert karma_threads() == []


def test_copies_run_in_order_on_one_thread(worker: Worker) -> None:
    assert karma_threads() == []  # it starts with the first copy
    ran: list[tuple[int, str]] = []
    for i in range(200):
        copy = worker.submit(lambda i=i: ran.append((i, threading.current_thread().name)))  # type: ignore[misc]
    copy.wait()
    assert ran == [(i, "karma-test") for i in range(200)]


def test_done_tells_without_blocking(worker: Worker) -> None:
    busy = Busy(worker)
    after = worker.submit(lambda: None)
    assert not busy.copy.done() and not after.done()
    busy.release.set()
    after.wait()
    assert busy.copy.done() and after.done()


def test_a_failure_is_raised_by_every_wait_and_the_next_copy_runs(worker: Worker) -> None:
    cause = ValueError("bad luck")
    copy = worker.submit(raising(cause))
    for _ in range(2):
        with pytest.raises(FarMemoryError, match="bad luck") as caught:
            copy.wait()
        assert caught.value.__cause__ is cause
    assert copy.done()
    ran: list[int] = []
    worker.submit(lambda: ran.append(1)).wait()
    assert ran == [1]


def test_a_named_error_keeps_its_message(worker: Worker) -> None:
    cause = FarMemoryError("the disk is full")
    with pytest.raises(FarMemoryError, match=r"^the disk is full$") as caught:
        worker.submit(raising(cause)).wait()
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize("fails", [False, True])
def test_a_copy_that_ended_holds_nothing(worker: Worker, fails: bool) -> None:
    class Near:
        pass

    def submit() -> tuple[object, weakref.ref[Near]]:
        near = Near()
        return worker.submit(partial(run, near)), weakref.ref(near)

    def run(near: Near) -> None:
        if fails:
            raise OSError("bad luck")

    copy, near = submit()
    worker.submit(lambda: None).wait()
    assert copy is not None and near() is None


def test_close_cancels_the_queue_and_waits_for_the_copy_in_hand(worker: Worker) -> None:
    busy = Busy(worker)
    ran: list[int] = []
    queued = [worker.submit(lambda: ran.append(1)) for _ in range(3)]
    with background(worker.close) as closing:
        for copy in queued:
            with pytest.raises(FarMemoryError, match="closed before the transfer ran"):
                copy.wait()
        assert closing.is_alive() and not busy.copy.done()
        busy.release.set()
    busy.copy.wait()
    assert ran == [] and karma_threads() == []
    worker.close()
    with pytest.raises(FarMemoryError, match="is closed"):
        worker.submit(lambda: None)


def test_close_without_a_copy() -> None:
    Worker("karma-test").close()
    assert karma_threads() == []


def test_close_while_the_thread_empties_the_queue() -> None:
    """The last copy may go to the thread at the moment when ``close`` looks for it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def churn() -> None:
        for i in range(3000):
            worker = Worker("karma-test")
            copies = [worker.submit(lambda: None) for _ in range(1 + i % 4)]
            worker.close()
            assert all(copy.done() for copy in copies)

    try:
        with background(churn):
            pass
    finally:
        sys.setswitchinterval(interval)


def test_close_does_not_hang_with_a_disk_that_hangs(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "CLOSE_TIMEOUT_S", 0.05)
    busy = Busy(worker)
    start = time.monotonic()
    worker.close()
    assert 0.04 < time.monotonic() - start < 5 and not busy.copy.done()
    busy.release.set()
    await_no_threads()  # it ends by itself


def test_a_copy_may_close_its_own_worker(worker: Worker) -> None:
    """As a finalizer does that runs on the thread of the worker."""
    worker.submit(worker.close).wait()
    with pytest.raises(FarMemoryError, match="is closed"):
        worker.submit(lambda: None)
    await_no_threads()


def test_ctrl_c_interrupts_wait(worker: Worker) -> None:
    busy = Busy(worker)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        busy.copy.wait()
    timer.join()
    assert not busy.copy.done()
    busy.release.set()
    busy.copy.wait()  # and it goes on all the same


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_gets_a_named_error(worker: Worker) -> None:
    worker.submit(lambda: None).wait()
    busy = Busy(worker)
    for use in (busy.copy.wait, lambda: worker.submit(lambda: None)):
        assert in_child(use).startswith("FarMemoryError: this far memory belongs to the process")
    assert in_child(worker.close) == "None"
    busy.release.set()
    busy.copy.wait()
