"""A progress bar on a terminal; on anything else, one line when the work ends."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 28


class Progress:
    """``label [#####-----] 3/6, 12 s, note``, redrawn in place."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self.label = label
        self.total = total
        self.done = 0
        self.note = ""
        self.stream = sys.stderr if stream is None else stream
        self.start_s = time.monotonic()

    def line(self) -> str:
        filled = WIDTH * self.done // self.total
        bar = "#" * filled + "-" * (WIDTH - filled)
        elapsed_s = time.monotonic() - self.start_s
        text = f"{self.label} [{bar}] {self.done}/{self.total}, {elapsed_s:.0f} s"
        return f"{text}, {self.note}" if self.note else text

    def draw(self) -> None:
        """Show how much time has passed; called as often as one likes."""
        if self.stream.isatty():
            self.stream.write(f"\r\x1b[K{self.line()}")
            self.stream.flush()

    def advance(self, note: str = "") -> None:
        self.done += 1
        self.note = note
        self.draw()

    def close(self, note: str = "") -> None:
        """End the line, with ``note`` in place of the last one."""
        self.note = note
        start = "\r\x1b[K" if self.stream.isatty() else ""
        self.stream.write(f"{start}{self.line()}\n")
        self.stream.flush()
