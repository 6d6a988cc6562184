"""A tensor in far memory, and the small near tensor that stands for it.

Autograd saves only tensors, so a saved tensor that went far is replaced by a handle: one int64
that names its parcel. The handle's storage owns the parcel (through the buffer protocol), so the
far slot is given back exactly when the last alias of the handle is gone: after backward, or when a
loss is thrown away without one, or when an exception drops the graph.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass, field

import torch

from karma_fx.runtime.pool import SharedTier
from karma_fx.runtime.tier import Slot, Transfer

HANDLE_BYTES = 8


@dataclass
class Parcel:
    """``sizes``, ``strides`` and ``offset`` (in elements) rebuild the tensor over its storage."""

    shared: SharedTier
    slot: Slot
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storing: Transfer | None = None
    loading: dict[int, Transfer] = field(default_factory=dict)


class _Ticket(bytearray):
    """The bytes of a handle; weakly referable, unlike a plain bytearray."""


_parcels: dict[int, Parcel] = {}
_ids = itertools.count(1)


def make_handle(parcel: Parcel) -> torch.Tensor:
    """A tensor of one int64 that keeps ``parcel`` alive."""
    key = next(_ids)
    ticket = _Ticket(key.to_bytes(HANDLE_BYTES, "little"))
    _parcels[key] = parcel
    weakref.finalize(ticket, _drop, key).atexit = False
    return torch.frombuffer(ticket, dtype=torch.int64)


def _drop(key: int) -> None:
    parcel = _parcels.pop(key)
    parcel.shared.tier.free(parcel.slot)


def parcel_of(handle: torch.Tensor) -> Parcel:
    """The parcel that ``handle`` stands for."""
    return _parcels[int(handle.item())]


def live_parcels() -> int:
    """How many tensors are in far memory now."""
    return len(_parcels)
