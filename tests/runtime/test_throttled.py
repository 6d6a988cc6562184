"""The link of a given speed: time, cap, and what it hands on to the tier behind it."""

from __future__ import annotations

import time

import pytest

from karma_fx.errors import FarMemoryError
from karma_fx.runtime.poison import PoisonTier
from karma_fx.runtime.ram import RamTier
from karma_fx.runtime.slots import PAGE
from karma_fx.units import MIB
from tests.runtime.helpers import fast, get, put, random_bytes


def test_takes_at_least_the_time() -> None:
    rates = {"out_bytes_per_s": 10.0 * MIB, "in_bytes_per_s": 20.0 * MIB, "latency_s": 0.02}
    throttled = fast(RamTier(), **rates)
    near = random_bytes(MIB)
    slot = throttled.alloc(MIB)
    start = time.perf_counter()
    copies = [throttled.store(near, slot) for _ in range(2)]
    assert not copies[0].done()
    copies[1].wait()
    stored = time.perf_counter()
    assert 2 * 0.12 <= stored - start < 2
    get(throttled, slot)
    assert 0.07 <= time.perf_counter() - stored < 1
    throttled.close()


def test_cap() -> None:
    throttled = fast(RamTier(), cap_bytes=3 * PAGE)
    slots = [throttled.alloc(PAGE + 1), throttled.alloc(0)]
    for refused in (lambda: throttled.alloc(1), lambda: throttled.reserve(3 * PAGE + 1)):
        with pytest.raises(FarMemoryError, match="capped at 12"):
            refused()
    throttled.reserve(3 * PAGE)
    throttled.free(slots[0])
    assert throttled.alloc(2 * PAGE).offset == slots[0].offset
    throttled.close()


def test_hands_on_release_failure_and_close() -> None:
    poison = PoisonTier()
    throttled = fast(poison)
    near = random_bytes(8)
    slot = put(throttled, near)
    throttled.released(near)
    assert near.eq(0xFF).all()
    with pytest.raises(FarMemoryError) as caught:
        throttled.store(random_bytes(9), slot).wait()
    assert isinstance(caught.value.__cause__, RuntimeError)
    throttled.close()
    assert poison.held == {}


@pytest.mark.parametrize(
    "options", [{"out_bytes_per_s": 0.0}, {"in_bytes_per_s": -1.0}, {"latency_s": -0.1}]
)
def test_refuses_bad_rates(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        fast(PoisonTier(), **options)
