"""What every tier promises, and what the tiers with worker threads share."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from karma_fx.errors import FarMemoryError
from karma_fx.runtime.disk import DiskTier
from karma_fx.runtime.poison import PoisonTier
from karma_fx.runtime.queued import QueuedTier
from karma_fx.runtime.ram import RamTier
from karma_fx.runtime.slots import PAGE
from karma_fx.runtime.tier import Slot, Tier
from karma_fx.units import MIB
from tests.runtime.helpers import (
    PATIENCE_S,
    SIZES,
    background,
    fast,
    get,
    in_child,
    karma_threads,
    open_files,
    put,
    python,
    random_bytes,
)

MAKE: dict[str, Callable[[Path], Tier]] = {
    "ram": lambda path: RamTier(),
    "disk": lambda path: DiskTier(str(path)),
    "poison": lambda path: PoisonTier(),
    "throttled": lambda path: fast(RamTier()),
}
THREADED = ["ram", "disk", "throttled"]


@pytest.fixture(params=MAKE)
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tier]:
    made = MAKE[request.param](tmp_path)
    yield made
    made.close()
    assert karma_threads() == [] and open_files(tmp_path) == []


class Gated(RamTier):
    """Stores wait for ``gate``; ``moves`` lists what was moved, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.began = threading.Event(), threading.Event()
        self.moves: list[tuple[str, int]] = []

    def _write(self, address: int, offset: int, nbytes: int) -> None:
        self.began.set()
        assert self.gate.wait(PATIENCE_S)
        self.moves.append(("out", offset))
        super()._write(address, offset, nbytes)

    def _read(self, offset: int, address: int, nbytes: int) -> None:
        self.moves.append(("in", offset))
        super()._read(offset, address, nbytes)


@pytest.fixture
def gated() -> Iterator[Gated]:
    made = Gated()
    yield made
    made.gate.set()
    made.close()


def test_is_a_tier(tier: Tier) -> None:
    assert isinstance(tier, Tier)


@pytest.mark.parametrize("nbytes", SIZES)
def test_round_trip(tier: Tier, nbytes: int) -> None:
    """From and to addresses that are aligned to nothing, too."""
    for misalign in (0, 13):
        near = random_bytes(nbytes, misalign=misalign)
        before = near.clone()
        slot = put(tier, near)
        assert torch.equal(near, before)
        assert torch.equal(get(tier, slot, misalign), near)
        assert torch.equal(get(tier, slot, 1), near)  # a slot may be read twice
        tier.free(slot)


def test_many_slots_at_once_with_reuse(tier: Tier) -> None:
    """Also across the chunks of RAM: 64 MiB each."""
    choose = random.Random(0)
    tier.reserve(60 * MIB)
    live: list[tuple[Slot, torch.Tensor]] = []
    for seed in range(30):
        near = random_bytes(choose.choice([1, 5000, MIB, 5 * MIB + 1]), seed)
        live.append((put(tier, near), near))
        if choose.random() < 0.4:
            tier.free(live.pop(choose.randrange(len(live)))[0])
    for slot, near in live:
        assert torch.equal(get(tier, slot), near)


def test_a_slot_across_two_chunks_of_ram() -> None:
    ram = RamTier()
    ram.alloc(60 * MIB)
    near = random_bytes(8 * MIB + 3)
    slot = put(ram, near)
    assert slot.offset < 64 * MIB < slot.offset + slot.nbytes
    assert torch.equal(get(ram, slot), near)
    ram.close()


@pytest.mark.parametrize(
    "near",
    [
        torch.zeros(8, dtype=torch.int8),
        torch.zeros(2, 4, dtype=torch.uint8),
        torch.zeros(16, dtype=torch.uint8)[::2],
        torch.zeros(7, dtype=torch.uint8),
    ],
    ids=["dtype", "shape", "strides", "size"],
)
def test_near_must_be_flat_bytes(near: torch.Tensor, gated: Gated) -> None:
    slot = gated.alloc(8)
    with pytest.raises(ValueError, match="8 flat bytes"):
        gated.store(near, slot)
    with pytest.raises(ValueError, match="8 flat bytes"):
        gated.load(slot, near)


def test_each_direction_is_fifo_and_loads_pass_stores(gated: Gated) -> None:
    near = random_bytes(8)
    slots = [gated.alloc(8) for _ in range(6)]
    stores = [gated.store(near, slot) for slot in slots[:3]]
    loads = [gated.load(slot, torch.empty_like(near)) for slot in slots[3:]]
    loads[-1].wait()
    assert not any(store.done() for store in stores)
    gated.gate.set()
    stores[-1].wait()
    order = [("in", s.offset) for s in slots[3:]] + [("out", s.offset) for s in slots[:3]]
    assert gated.moves == order


def test_a_slot_is_taken_again_while_its_store_is_queued(gated: Gated) -> None:
    old, new = random_bytes(PAGE, 1), random_bytes(PAGE, 2)
    first = gated.alloc(PAGE)
    gated.store(old, first)
    gated.free(first)  # does not wait for the store
    second = gated.alloc(PAGE)
    assert second.offset == first.offset
    last = gated.store(new, second)
    gated.gate.set()
    last.wait()
    assert torch.equal(get(gated, second), new)


def test_the_near_tensor_is_kept_until_the_copy_ends(gated: Gated) -> None:
    near = random_bytes(8)
    alive = weakref.ref(near)
    store = gated.store(near, gated.alloc(8))
    del near
    gc.collect()
    assert alive() is not None
    gated.gate.set()
    store.wait()
    gated.store(random_bytes(8), gated.alloc(8)).wait()  # the thread went on
    assert alive() is None


def test_a_failed_copy_is_raised_by_wait() -> None:
    class Broken(RamTier):
        def _write(self, address: int, offset: int, nbytes: int) -> None:
            raise cause

    cause = OSError(5, "Input/output error")
    broken = Broken()
    near = random_bytes(8)
    alive = weakref.ref(near)
    store = broken.store(near, broken.alloc(8))
    del near
    with pytest.raises(FarMemoryError, match="Input/output error") as caught:
        store.wait()
    assert caught.value.__cause__ is cause
    assert alive() is None  # though the error is there, with its traceback
    broken.close()


def test_a_refused_alloc_leaves_the_tier_as_it_was() -> None:
    ram = RamTier(cap_bytes=4 * PAGE)
    near = random_bytes(PAGE)
    slot = put(ram, near)
    with pytest.raises(FarMemoryError, match="its cap is 16"):
        ram.alloc(MIB)
    with pytest.raises(FarMemoryError, match="its cap is 16"):
        ram.reserve(5 * PAGE)
    others = [ram.alloc(PAGE) for _ in range(3)]  # the rest of the cap
    with pytest.raises(FarMemoryError):
        ram.alloc(1)
    ram.free(others[0])
    assert ram.alloc(1).offset == others[0].offset
    assert torch.equal(get(ram, slot), near)
    ram.close()


def test_more_ram_than_there_is_is_a_named_error() -> None:
    ram = RamTier()
    with pytest.raises(FarMemoryError, match="use far='disk'"):
        ram.reserve(1 << 62)
    assert torch.equal(get(ram, put(ram, random_bytes(9))), random_bytes(9))
    ram.close()


def test_growing_from_many_threads_at_once() -> None:
    class Slow(QueuedTier):
        """Another thread may come in the middle of ``_extend``."""

        busy, sizes = False, [0]

        def _extend(self, nbytes: int) -> None:
            assert not self.busy and nbytes > self.sizes[-1]
            self.busy = True
            time.sleep(0.001)
            self.sizes.append(nbytes)
            self.busy = False

        def _shut(self) -> None:
            pass

    slow, failed = Slow(), []

    def allocate() -> None:
        try:
            for _ in range(10):
                slow.alloc(PAGE)
        except AssertionError as error:
            failed.append(error)

    threads = [threading.Thread(target=allocate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and slow.sizes[-1] == 40 * PAGE
    slow.close()


@pytest.mark.parametrize("name", THREADED)
def test_close(name: str, tmp_path: Path) -> None:
    tier = MAKE[name](tmp_path)
    slot = put(tier, random_bytes(9))
    get(tier, slot)
    assert karma_threads() and bool(open_files(tmp_path)) == (name == "disk")
    tier.close()
    assert karma_threads() == [] and open_files(tmp_path) == []
    tier.close()
    uses: list[Callable[[], object]] = [
        lambda: tier.store(random_bytes(9), slot),
        lambda: tier.load(slot, random_bytes(9)),
        lambda: tier.alloc(100 * MIB),
        lambda: tier.alloc(1),
        lambda: tier.reserve(100 * MIB),
    ]
    for use in uses:
        with pytest.raises(FarMemoryError, match="is closed"):
            use()
    tier.free(slot)  # by the finalizer of a tensor that outlived the tier


def test_close_cancels_queued_copies(gated: Gated) -> None:
    near = random_bytes(8)
    first, second = (gated.store(near, gated.alloc(8)) for _ in range(2))
    assert gated.began.wait(PATIENCE_S)
    with background(gated.close):
        with pytest.raises(FarMemoryError, match="closed before the transfer ran"):
            second.wait()
        assert not first.done()
        gated.gate.set()
    first.wait()
    assert len(gated.moves) == 1 and karma_threads() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("name", THREADED)
def test_a_forked_child_can_neither_use_nor_harm_it(name: str, tmp_path: Path) -> None:
    tier = MAKE[name](tmp_path)
    near, other = random_bytes(MIB), torch.zeros(MIB, dtype=torch.uint8)
    slot = put(tier, near)
    uses: list[Callable[[], object]] = [
        lambda: tier.alloc(MIB),
        lambda: tier.reserve(100 * MIB),
        lambda: tier.store(other, slot).wait(),
        lambda: tier.load(slot, other).wait(),
    ]
    for use in uses:
        assert in_child(use).startswith("FarMemoryError: this far memory belongs to the process")
    assert in_child(tier.close) == "None"
    assert torch.equal(get(tier, slot), near)
    assert torch.equal(get(tier, put(tier, near)), near)
    tier.close()


UNCLOSED = """
import sys, torch
from karma_fx.runtime.disk import DiskTier
from karma_fx.runtime.ram import RamTier
from karma_fx.runtime.throttled import ThrottledTier
slow = ThrottledTier(RamTier(), out_bytes_per_s=1.0, in_bytes_per_s=1.0)  # a hundred days
tiers = [DiskTier(sys.argv[1]), slow, RamTier(), RamTier(), RamTier(), RamTier()]
for tier in tiers:
    slot = tier.alloc(32 << 20)
    for _ in range(6):  # of tensors that the queue alone holds
        tier.store(torch.ones(32 << 20, dtype=torch.uint8), slot)
print("last words")
"""


def test_a_process_ends_without_close(tmp_path: Path) -> None:
    start = time.monotonic()
    done = python(UNCLOSED, str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "last words\n", "")
    assert time.monotonic() - start < 30
    assert list(tmp_path.iterdir()) == []
