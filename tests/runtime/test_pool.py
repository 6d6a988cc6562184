"""Tiers are shared by name, and closed with their last holder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from karma_fx.errors import FarMemoryError
from karma_fx.runtime import pool
from karma_fx.runtime.disk import DiskTier
from karma_fx.runtime.factory import make_tier
from karma_fx.runtime.poison import PoisonTier
from karma_fx.runtime.pool import SharedTier, shared_tier, use_tier
from karma_fx.runtime.ram import RamTier
from karma_fx.runtime.slots import PAGE
from tests.runtime.helpers import karma_threads, open_files, put, random_bytes


@pytest.fixture(autouse=True)
def nothing_stays_shared() -> Iterator[None]:
    before = set(pool._shared)
    yield
    assert set(pool._shared) <= before


class Closing(PoisonTier):
    def __init__(self) -> None:
        super().__init__()
        self.closed = 0
        self.reserved: list[int] = []

    def reserve(self, nbytes: int) -> None:
        self.reserved.append(nbytes)

    def close(self) -> None:
        self.closed += 1


def test_the_factory_knows_each_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "with:colon").mkdir()
    assert isinstance(make_tier("ram"), RamTier)
    assert isinstance(make_tier("poison"), PoisonTier)
    for far, place in [
        ("disk", tmp_path),
        (f"disk:{tmp_path}/with:colon", tmp_path / "with:colon"),
    ]:
        tier = make_tier(far)
        assert isinstance(tier, DiskTier) and tier.directory == place
        tier.close()


def test_one_tier_a_name(tmp_path: Path) -> None:
    far = f"disk:{tmp_path}"
    first, second, other = shared_tier(far), shared_tier(far), shared_tier("ram")
    assert first is second and first.tier is not other.tier
    assert len(open_files(tmp_path)) == 1


def test_the_last_holder_closes(tmp_path: Path) -> None:
    far = f"disk:{tmp_path}"
    first, second = shared_tier(far), shared_tier(far)
    put(first.tier, random_bytes(9))
    del first
    assert karma_threads() and len(open_files(tmp_path)) == 1
    tier = second.tier
    del second
    assert karma_threads() == [] and open_files(tmp_path) == []
    assert shared_tier(far).tier is not tier  # opened anew


def test_a_tier_that_cannot_be_opened_is_not_remembered(tmp_path: Path) -> None:
    far = f"disk:{tmp_path}/later"
    with pytest.raises(FarMemoryError, match="not a directory"):
        shared_tier(far)
    (tmp_path / "later").mkdir()
    assert shared_tier(far).tier.name == "disk"


def test_use_tier_overrides_while_it_is_held() -> None:
    before = shared_tier("ram")
    mine = Closing()
    held = use_tier("ram", mine)
    assert shared_tier("ram") is held and held.tier is mine
    del before  # its end must not take the new one along
    assert shared_tier("ram") is held and mine.closed == 0
    del held
    assert mine.closed == 1
    assert isinstance(shared_tier("ram").tier, RamTier)


def test_reservations_add_up() -> None:
    tier = Closing()
    shared = SharedTier(tier)
    shared.reserve_more(3)
    shared.reserve_more(4)
    assert tier.reserved == [3, 7] and shared.reserved_bytes == 7


def test_a_refused_reservation_does_not_count() -> None:
    shared = SharedTier(RamTier(cap_bytes=4 * PAGE))
    shared.reserve_more(3 * PAGE)
    with pytest.raises(FarMemoryError):
        shared.reserve_more(2 * PAGE)
    shared.reserve_more(PAGE)
    assert shared.reserved_bytes == 4 * PAGE
