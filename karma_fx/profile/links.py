"""What the link to a tier of far memory gives: bytes per second a direction, latency, and by how
much a transfer slows compute down."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

import torch

from karma_fx import torch_compat
from karma_fx.planner.links import Links
from karma_fx.profile.store import Store
from karma_fx.runtime.tier import Tier

_PROBE_BYTES = 32 << 20
_RUNS = 5


def measure_links(tier: Tier, store: Store, key: str) -> Links:
    """The links of ``tier``, from ``store`` (under ``key``) or measured; takes about a second."""
    known = store.get(f"links|{key}")
    if known is None:
        with torch_compat.real_mode():
            known = measure(tier)
        store.put(f"links|{key}", known)
    return Links(*known)


def links_of(tier: Tier) -> Links:
    """The links of ``tier``, measured once on this machine."""
    store = Store()
    links = measure_links(tier, store, tier.name)
    store.flush()
    return links


def measure(tier: Tier) -> list[float]:
    """Bytes per microsecond out and in, latency in microseconds, interference."""
    near = torch.ones(_PROBE_BYTES, dtype=torch.uint8)
    small = torch.ones(4096, dtype=torch.uint8)
    slot, small_slot = tier.alloc(near.numel()), tier.alloc(small.numel())
    try:
        out_s = _median(lambda: tier.store(near, slot).wait())
        in_s = _median(lambda: tier.load(slot, near).wait())
        latency_s = _median(lambda: tier.store(small, small_slot).wait())
        slowdown = _interference(lambda: tier.store(near, slot).wait())
    finally:
        tier.free(slot)
        tier.free(small_slot)
    rate_out = _PROBE_BYTES / max(out_s - latency_s, 1e-9) / 1e6
    rate_in = _PROBE_BYTES / max(in_s - latency_s, 1e-9) / 1e6
    return [rate_out, rate_in, latency_s * 1e6, slowdown]


def _median(action: Callable[[], None]) -> float:
    times = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _interference(copy: Callable[[], None]) -> float:
    """By which share a matrix product slows down while copies run."""
    a, out = torch.ones(768, 768), torch.empty(768, 768)
    product = lambda: torch.mm(a, a, out=out)  # noqa: E731
    stop = threading.Event()

    def keep_copying() -> None:
        while not stop.is_set():
            copy()

    quiet = statistics.median(_timed(product) for _ in range(30))
    copier = threading.Thread(target=keep_copying)
    copier.start()
    try:
        busy = statistics.median(_timed(product) for _ in range(30))
    finally:
        stop.set()
        copier.join()
    return max(0.0, busy / quiet - 1.0)


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
