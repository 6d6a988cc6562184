"""The poison tier: nothing arrives before its wait, and nothing survives its release."""

from __future__ import annotations

import pytest
import torch

from karma_fx.runtime.poison import POISON, PoisonTier
from tests.runtime.helpers import get, karma_threads, put, random_bytes


@pytest.fixture
def tier() -> PoisonTier:
    return PoisonTier()


def poisoned(near: torch.Tensor) -> bool:
    return bool(near.eq(POISON).all())


def test_poison_is_nan_and_minus_one() -> None:
    near = torch.full((8,), POISON, dtype=torch.uint8)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert near.view(dtype).isnan().all()
    assert near.view(torch.int64).item() == -1


def test_a_store_happens_in_its_wait(tier: PoisonTier) -> None:
    near = random_bytes(64, 1)
    slot = tier.alloc(64)
    store = tier.store(near, slot)
    assert not store.done() and poisoned(tier.held[slot.offset])
    store.wait()
    assert store.done() and torch.equal(tier.held[slot.offset], near)
    assert tier.faults == []


def test_a_second_wait_copies_nothing(tier: PoisonTier) -> None:
    near = random_bytes(64)
    slot = tier.alloc(64)
    store = tier.store(near, slot)
    store.wait()
    before = near.clone()
    near.fill_(0)
    store.wait()
    assert torch.equal(get(tier, slot), before)


def test_a_load_happens_in_its_wait(tier: PoisonTier) -> None:
    slot = put(tier, random_bytes(64, 1))
    near = torch.zeros(64, dtype=torch.uint8)
    load = tier.load(slot, near)
    assert not load.done() and poisoned(near)
    load.wait()
    assert load.done() and torch.equal(near, random_bytes(64, 1))


def test_a_released_source_is_poison_and_the_slot_is_not(tier: PoisonTier) -> None:
    near = random_bytes(64, 1)
    slot = put(tier, near)
    tier.released(near)
    assert poisoned(near)
    assert torch.equal(get(tier, slot), random_bytes(64, 1))


def test_slots_are_never_reused(tier: PoisonTier) -> None:
    first = tier.alloc(64)
    tier.free(first)
    assert tier.alloc(64).offset != first.offset


def test_a_freed_slot_is_gone(tier: PoisonTier) -> None:
    slot = put(tier, random_bytes(64))
    bytes_ = tier.held[slot.offset]
    tier.free(slot)
    assert poisoned(bytes_) and tier.held == {} and tier.faults == []
    with pytest.raises(KeyError):
        tier.free(slot)
    with pytest.raises(KeyError):
        tier.load(slot, random_bytes(64))


def test_a_load_before_the_wait_of_its_store_is_a_fault(tier: PoisonTier) -> None:
    slot = tier.alloc(64)
    store = tier.store(random_bytes(64), slot)
    tier.load(slot, torch.empty(64, dtype=torch.uint8))
    store.wait()
    assert tier.faults == [f"slot {slot.offset} was loaded before its store was waited for"]


def test_a_free_before_the_wait_of_a_load_is_a_fault(tier: PoisonTier) -> None:
    slot = put(tier, random_bytes(64))
    get(tier, slot)
    tier.load(slot, torch.empty(64, dtype=torch.uint8))
    tier.free(slot)
    assert tier.faults == [f"slot {slot.offset} was freed before its load was waited for"]


def test_close_drops_all(tier: PoisonTier) -> None:
    put(tier, random_bytes(64))
    tier.close()
    tier.close()
    assert tier.held == {} and karma_threads() == []
