"""The allocator of far bytes: no overlap, first fit, merging, and free at any moment."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karma_fx.runtime import slots as slots_module
from karma_fx.runtime.slots import PAGE, Slots, whole_pages
from karma_fx.runtime.tier import Slot
from tests.runtime.helpers import background

sizes = st.one_of(st.integers(0, 3), st.integers(PAGE - 2, PAGE + 2), st.integers(0, 9 * PAGE))


def pages(slot: Slot) -> range:
    first = slot.offset // PAGE
    return range(first, first + whole_pages(slot.nbytes) // PAGE)


def assert_apart(live: list[Slot]) -> None:
    taken = [page for slot in live for page in pages(slot)]
    assert len(set(taken)) == len(taken)


def longest_gap(live: list[Slot], end: int) -> int:
    """The most free pages in a row below ``end``."""
    taken = {page for slot in live for page in pages(slot)}
    free = [page not in taken for page in range(end // PAGE)]
    return max((len(list(run)) for is_free, run in itertools.groupby(free) if is_free), default=0)


@pytest.mark.parametrize(
    ("nbytes", "expected"), [(0, PAGE), (1, PAGE), (PAGE, PAGE), (PAGE + 1, 2 * PAGE)]
)
def test_whole_pages(nbytes: int, expected: int) -> None:
    assert whole_pages(nbytes) == expected


@settings(max_examples=150)
@given(st.lists(st.tuples(st.booleans(), sizes, st.integers(0, 1 << 30)), max_size=60))
def test_any_sequence(steps: list[tuple[bool, int, int]]) -> None:
    slots = Slots()
    live: list[Slot] = []
    for frees, nbytes, pick in steps:
        if frees and live:
            slots.free(live.pop(pick % len(live)))
            continue
        gap, end = longest_gap(live, slots.end), slots.end
        slot = slots.alloc(nbytes)
        live.append(slot)
        assert slot.nbytes == nbytes and slot.offset % PAGE == 0
        assert slot.offset + whole_pages(nbytes) <= slots.end
        assert_apart(live)
        assert slots.taken_bytes == sum(whole_pages(s.nbytes) for s in live)
        if gap >= whole_pages(nbytes) // PAGE:
            assert slots.end == end
        else:
            assert end < slots.end <= end + whole_pages(nbytes)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_neighbours_merge_in_any_order(order: tuple[int, ...]) -> None:
    slots = Slots()
    made = [slots.alloc(n * PAGE) for n in (1, 2, 3, 4)]
    for index in order:
        slots.free(made[index])
    assert slots.alloc(10 * PAGE) == Slot(0, 10 * PAGE)
    assert slots.end == 10 * PAGE


def test_a_free_tail_grows_instead_of_being_left_behind() -> None:
    slots = Slots()
    slots.alloc(PAGE)
    slots.free(slots.alloc(2 * PAGE))
    assert slots.alloc(5 * PAGE).offset == PAGE
    assert slots.end == 6 * PAGE


def test_a_finalizer_frees_in_the_middle_of_alloc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection inside ``alloc`` frees on the thread that is in there, and must not hang."""

    class Owner:
        pass

    slots = Slots()
    first = slots.alloc(PAGE)
    collections = 0

    def collecting(nbytes: int) -> int:
        nonlocal collections
        if not collections:
            collections += gc.collect() > 0
        return whole_pages(nbytes)

    owner = Owner()
    owner.cycle = owner  # type: ignore[attr-defined]
    weakref.finalize(owner, slots.free, first)
    del owner
    monkeypatch.setattr(slots_module, "whole_pages", collecting)
    made: list[Slot] = []
    with background(lambda: made.append(slots.alloc(PAGE))):
        pass
    assert collections == 1
    made.append(slots.alloc(PAGE))
    assert_apart(made)
    assert slots.end == 2 * PAGE and first.offset in [slot.offset for slot in made]


def test_many_threads() -> None:
    slots = Slots()
    kept: list[Slot] = []

    def churn() -> None:
        for i in range(300):
            slot, other = slots.alloc(i * 37 % (4 * PAGE)), slots.alloc(PAGE)
            slots.free(slot)
            if i % 10:
                slots.free(other)
            else:
                kept.append(other)

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept) == 4 * 30
    assert_apart(kept)
    for slot in kept:
        slots.free(slot)
    assert slots.alloc(slots.end).offset == 0  # all of it is free, and in one run
