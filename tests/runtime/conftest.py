"""A test answers for the threads that it started, not for those of graphs compiled before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.runtime import helpers


@pytest.fixture(autouse=True)
def clean_torch() -> None:
    """In place of the one that resets the compiler, which takes time: nothing is compiled here."""


@pytest.fixture(autouse=True)
def older_threads() -> Iterator[None]:
    helpers.older_threads.update(threading.enumerate())
    yield
    helpers.older_threads.clear()
