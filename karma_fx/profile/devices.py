"""Devices that one need not have: what the planner assumes of them, and where the figures are from.

Peaks are dense, without sparsity. A kernel reaches a share of them (``matmul_efficiency`` of the
arithmetic peak, ``memory_efficiency`` of the memory rate); both shares are assumptions of ours,
of the size that well-tuned libraries reach on large shapes. Link rates are effective ones, for
copies between pinned host memory and the device.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from karma_fx.errors import OptionError
from karma_fx.planner.links import Links
from karma_fx.units import GIB

MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Rates are per second: FLOP for ``flops`` (by dtype), bytes for the others."""

    name: str
    memory_bytes: int
    flops: dict[str, float]
    memory_rate: float
    out_rate: float
    in_rate: float
    latency_us: float = 10.0
    launch_us: float = 4.0
    matmul_efficiency: float = 0.75
    memory_efficiency: float = 0.8
    interference: float = 0.0
    sources: tuple[str, ...] = ()

    def peak(self, dtype: str) -> float:
        """FLOP/s for ``dtype`` ("float32", ...); that of float32 where it is not given."""
        return self.flops.get(dtype, self.flops["float32"])

    def links(self) -> Links:
        return Links(self.out_rate / 1e6, self.in_rate / 1e6, self.latency_us, self.interference)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def _gpu(
    name: str, gb: int, fp32: float, half: float, memory: float, link: tuple[float, float], *by: str
) -> DeviceProfile:
    """TFLOP/s, GB/s; usable memory is what the card has less 5% for its runtime."""
    flops = {"float32": fp32 * 1e12, "float16": half * 1e12, "bfloat16": half * 1e12}
    flops["float64"] = fp32 * 1e12 / 2
    usable = int(gb * GIB * 0.95)
    rates = (memory * 1e9, link[0] * 1e9, link[1] * 1e9)
    return DeviceProfile(name, usable, flops, *rates, sources=by)


PRESETS: dict[str, DeviceProfile] = {
    p.name: p
    for p in (
        replace(
            _gpu("v100-16gb", 16, 15.7, 125, 900, (12, 12),
                 "NVIDIA V100 datasheet (SXM2)", "PCIe gen3 x16 measured at about 12 GB/s"),
            flops={"float32": 15.7e12, "float16": 125e12, "bfloat16": 15.7e12, "float64": 7.8e12},
        ),
        _gpu("a100-40gb", 40, 19.5, 312, 1555, (25, 25), "NVIDIA A100 datasheet (SXM4 40 GB)"),
        _gpu("a100-80gb", 80, 19.5, 312, 2039, (25, 25), "NVIDIA A100 datasheet (SXM4 80 GB)"),
        _gpu("h100-80gb", 80, 67, 989, 3350, (53, 55), "NVIDIA H100 datasheet (SXM5)"),
        _gpu("h200", 141, 67, 989, 4800, (53, 55), "NVIDIA H200 datasheet"),
        _gpu("rtx4090", 24, 82.6, 165, 1008, (25, 25), "NVIDIA Ada whitepaper, FP32 accumulate"),
        _gpu("rtx5090", 32, 105, 210, 1792, (50, 50), "NVIDIA Blackwell RTX whitepaper"),
        DeviceProfile(
            "cpu", 16 * GIB, {"float32": 0.1e12, "float64": 0.05e12}, 20e9, 2e9, 2e9,
            latency_us=100.0, launch_us=5.0, interference=0.1,
            sources=("two cores of a cloud server with NVMe; `karma profile` measures yours",),
        ),
    )
}  # fmt: skip


def find_device(name: str) -> DeviceProfile:
    """A preset, or a JSON file with the fields of ``DeviceProfile``. Raises ``OptionError``."""
    if name in PRESETS:
        return PRESETS[name]
    if name.endswith(".json") or os.sep in name:
        return load_device(Path(name))
    raise OptionError(f"no device {name!r}; give one of {', '.join(PRESETS)}, or a JSON file")


def load_device(path: Path) -> DeviceProfile:
    """Read a device's JSON strictly. Raises ``OptionError`` naming what is wrong with it."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
        return parse_device(json.loads(data))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"the device file {str(path)!r} can't be used: {error}") from error


def parse_device(body: object) -> DeviceProfile:
    """A profile from JSON values; raises ``ValueError``."""
    if not isinstance(body, dict):
        raise ValueError("it must hold one object")
    known = {f.name: str(f.type) for f in fields(DeviceProfile)}
    if unknown := sorted(set(body) - set(known)):
        raise ValueError(f"unknown fields {unknown}; known are {sorted(known)}")
    values = {name: _value(name, known[name], value) for name, value in body.items()}
    missing = {"name", "memory_bytes", "flops", "memory_rate", "out_rate", "in_rate"} - set(values)
    if missing:
        raise ValueError(f"fields are missing: {sorted(missing)}")
    return DeviceProfile(**values)  # type: ignore[arg-type]


def _value(name: str, kind: str, value: object) -> object:
    if kind == "str" and isinstance(value, str):
        return value
    if kind == "tuple[str, ...]" and isinstance(value, list):
        if all(isinstance(x, str) for x in value):
            return tuple(value)
    elif kind.startswith("dict") and isinstance(value, dict) and "float32" in value:
        return {str(k): _positive(f"{name}.{k}", v) for k, v in value.items()}
    elif kind == "int":
        return int(_positive(name, value))
    elif kind == "float":
        zero_ok = name in ("latency_us", "launch_us", "interference")
        return 0.0 if zero_ok and value == 0 else _positive(name, value)
    raise ValueError(
        f"field {name!r} must be of type {kind}" + ", with float32" * (name == "flops")
    )


def _positive(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e30:
        return float(value)
    raise ValueError(f"{name} must be a positive number, not {value!r}")
