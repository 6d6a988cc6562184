"""This machine as a ``DeviceProfile``: its rates, measured.

Rates are what kernels reach here, so the profile's efficiencies are 1. A figure is the median of
several runs; on a busy machine it is lower than what the machine could do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from karma_fx.budget import available_bytes
from karma_fx.planner.links import Links
from karma_fx.profile.devices import DeviceProfile
from karma_fx.profile.links import measure
from karma_fx.profile.store import machine_name
from karma_fx.runtime.tier import Tier

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SIZE, RUNS = 768, 9
"""Matrix products are of ``SIZE`` by ``SIZE``; every figure is the median of ``RUNS`` runs."""

STREAM_BYTES = 128 << 20
"""What the memory rate is measured on: more than caches hold."""

STEPS = len(DTYPES) + 3
"""How often ``on_step`` is called."""


def measure_machine(tier: Tier, on_step: Callable[[str], None] | None = None) -> DeviceProfile:
    """Measure matrix products per dtype (FLOP/s), memory (bytes/s), the time that calling an
    operation takes, and ``tier``'s link (bytes/s a direction, latency, interference); takes some
    seconds and about 0.4 GB. ``on_step`` is told what was measured."""
    tell = on_step or (lambda _: None)
    flops = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        rate = matmul_rate(dtype)
        if rate is not None:
            flops[name] = rate
        tell(f"matrix products in {name}")
    memory = memory_rate()
    tell("memory")
    launch = launch_us()
    tell("launch")
    links = Links(*measure(tier))
    tell(f"far memory ({tier.name})")
    return DeviceProfile(
        name="this machine",
        memory_bytes=available_bytes(),
        flops=flops,
        memory_rate=memory,
        out_rate=links.out_bytes_per_us * 1e6,
        in_rate=links.in_bytes_per_us * 1e6,
        latency_us=links.latency_us,
        launch_us=launch,
        matmul_efficiency=1.0,
        memory_efficiency=1.0,
        interference=links.interference,
        sources=(f"measured by karma profile: {machine_name()}, far memory {tier.name}",),
    )


def matmul_rate(dtype: torch.dtype) -> float | None:
    """FLOP/s of a square matrix product; None where the machine has none in ``dtype``."""
    try:
        a = torch.ones(SIZE, SIZE, dtype=dtype)
        out = torch.mm(a, a)
    except RuntimeError:
        return None
    return 2.0 * SIZE**3 / median_s(lambda: torch.mm(a, a, out=out))


def memory_rate() -> float:
    """Bytes/s that an addition into memory reads and writes."""
    a = torch.ones(STREAM_BYTES // 4)
    return 2.0 * STREAM_BYTES / median_s(lambda: a.add_(1.0))


def launch_us() -> float:
    """What calling an operation costs beside its work, in microseconds."""
    a, calls = torch.ones(1), 1000

    def many() -> None:
        for _ in range(calls):
            a.add_(1.0)

    return median_s(many) / calls * 1e6


def median_s(action: Callable[[], object]) -> float:
    """Median seconds of ``RUNS`` calls, after one to warm up."""
    action()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
