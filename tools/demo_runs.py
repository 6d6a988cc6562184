"""One training run of the demo, in a process of its own, as the parent sees it.

The worker (``demo_worker``) reports on a pipe, one JSON object a line, so that whatever it or its
libraries print cannot be taken for a report. How it died is read from its exit status and from
what it left on stderr, since a process that is out of memory cannot be relied on to explain
itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, TextIO

OUT_OF_MEMORY = "out of memory"
_OUT_OF_MEMORY_SIGNS = ("t allocate memory", "annot allocate memory", "MemoryError", "bad_alloc")
_REFRESH_S = 0.25


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is to do. ``mode`` is "eager", "karma" or "reference"."""

    mode: str
    layers: int
    width: int
    heads: int
    context: int
    batch: int
    steps: int
    memory_bytes: int
    far: str
    limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """What a worker tells after a training step.

    ``offloaded_bytes`` and ``stalled_s`` count since its start; only karma has them.
    """

    loss_hex: str
    step_s: float
    peak_rss_bytes: int
    offloaded_bytes: int | None = None
    stalled_s: float | None = None

    @property
    def loss(self) -> float:
        return float.fromhex(self.loss_hex)


@dataclass(slots=True)
class Run:
    """What became of a job. ``death`` says why it ended early; ``stderr`` then tells more."""

    job: Job
    steps: list[Step] = field(default_factory=list)
    peak_rss_bytes: int = 0
    death: str | None = None
    stderr: str = ""

    @property
    def step_s(self) -> float | None:
        """Median time of a step, without the first, which compiles."""
        return median(s.step_s for s in self.steps[1:]) if len(self.steps) > 1 else None

    def per_step(self, name: str) -> float | None:
        """Growth of the counter ``name`` per step, without the first."""
        counts: list[float] = [n for s in self.steps if (n := getattr(s, name)) is not None]
        return (counts[-1] - counts[0]) / (len(counts) - 1) if len(counts) > 1 else None


def cause_of_death(status: int, stderr: str) -> str:
    """Why a worker ended with ``status``, which is not 0; in a few words."""
    if any(sign in stderr for sign in _OUT_OF_MEMORY_SIGNS):
        return OUT_OF_MEMORY
    if status == -signal.SIGKILL:
        return f"{OUT_OF_MEMORY} (killed)"
    lines = stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {status}"


def _worker_environment() -> dict[str, str]:
    # Every arena of malloc maps memory of its own, which RLIMIT_DATA counts, used or not.
    return {**os.environ, "MALLOC_ARENA_MAX": "2"}


@contextlib.contextmanager
def _worker(job: Job, stderr: TextIO) -> Iterator[tuple[subprocess.Popen[bytes], TextIO]]:
    """Start the worker; yields it and its reports. It does not outlive the ``with``."""
    read_fd, write_fd = os.pipe()
    command = [sys.executable, "-m", "karma_fx.tools.demo_worker"]
    command += [str(write_fd), json.dumps(asdict(job))]
    with open(read_fd, encoding="utf-8") as reports:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=[write_fd],
                env=_worker_environment(),
            )
        finally:
            os.close(write_fd)
        try:
            yield process, reports
        finally:
            process.kill()
            process.wait()


def _lines_until_end(reports: TextIO, tick: Callable[[], None]) -> Iterator[str]:
    """The lines of ``reports`` as they come; ``tick`` is called while there is none."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in reports:
            lines.put(line)
        lines.put(None)

    thread = threading.Thread(target=read, name="demo-reports", daemon=True)
    thread.start()
    while True:
        try:
            line = lines.get(timeout=_REFRESH_S)
        except queue.Empty:
            tick()
            continue
        if line is None:
            thread.join()
            return
        yield line


def run_job(job: Job, on_step: Callable[[Step], None], tick: Callable[[], None]) -> Run:
    """Run ``job`` to its end. ``on_step`` hears of each step, ``tick`` of the passing of time."""
    run = Run(job)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        with _worker(job, stderr) as (process, reports):
            for line in _lines_until_end(reports, tick):
                message: dict[str, Any] = json.loads(line)
                if "loss_hex" in message:
                    run.steps.append(Step(**message))
                    on_step(run.steps[-1])
                run.peak_rss_bytes = max(run.peak_rss_bytes, message["peak_rss_bytes"])
            status = process.wait()
        if status != 0:
            stderr.seek(0)
            run.stderr = stderr.read()
            run.death = cause_of_death(status, run.stderr)
    return run
