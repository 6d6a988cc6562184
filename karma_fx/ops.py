"""The four transfer operations that karma puts into graphs.

=================================  ===============================================================
``offload(engine, t) -> far``      starts copying the storage of ``t`` out; ``far`` is its handle
``wait_offload(far, t) -> far``    waits for that copy; the last use of ``t``, so its bytes go here
``prefetch(far) -> p``             takes near bytes, starts copying in; ``p`` must not be read yet
``wait_prefetch(p, far) -> p``     waits for that copy; ``p`` is whole; the last use of ``far``
=================================  ===============================================================
"""

from __future__ import annotations

import time

import torch

from karma_fx.runtime.parcel import Parcel, make_handle, parcel_of
from karma_fx.runtime.pool import SharedTier
from karma_fx.runtime.stats import COUNTER
from karma_fx.runtime.tier import Transfer
from karma_fx.torch_compat import has_side_effect


def storage_as_bytes(t: torch.Tensor) -> torch.Tensor:
    """The whole storage of ``t``, as a flat uint8 tensor that aliases it."""
    return torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())


def offload(engine: SharedTier, t: torch.Tensor) -> torch.Tensor:
    """Start copying ``t`` (any strides; its whole storage goes) to ``engine``'s tier."""
    near = storage_as_bytes(t)
    slot = engine.tier.alloc(near.numel())
    parcel = Parcel(engine, slot, t.dtype, tuple(t.shape), t.stride(), int(t.storage_offset()))
    handle = make_handle(parcel)
    parcel.storing = engine.tier.store(near, slot)
    COUNTER.add(offloaded=near.numel())
    return handle


def wait_offload(far: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Wait until ``t`` is in far memory. Raises ``FarMemoryError`` when the copy failed."""
    parcel = parcel_of(far)
    assert parcel.storing is not None
    _wait(parcel.storing)
    parcel.storing = None
    parcel.shared.tier.released(storage_as_bytes(t))
    return far


def prefetch(far: torch.Tensor) -> torch.Tensor:
    """Take near memory for the tensor behind ``far`` and start copying it in."""
    parcel = parcel_of(far)
    near = torch.empty(parcel.slot.nbytes, dtype=torch.uint8)
    p = _rebuild(parcel, near)
    parcel.loading[p.untyped_storage().data_ptr()] = parcel.shared.tier.load(parcel.slot, near)
    COUNTER.add(prefetched=near.numel())
    return p


def wait_prefetch(p: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
    """Wait until ``p`` is whole. Raises ``FarMemoryError`` when the copy failed."""
    _wait(parcel_of(far).loading.pop(p.untyped_storage().data_ptr()))
    return p


def _rebuild(parcel: Parcel, near: torch.Tensor) -> torch.Tensor:
    tensor = torch.empty(0, dtype=parcel.dtype)
    return tensor.set_(near.untyped_storage(), parcel.offset, parcel.sizes, parcel.strides)


def _wait(transfer: Transfer) -> None:
    if transfer.done():
        transfer.wait()
        return
    start = time.perf_counter()
    try:
        transfer.wait()
    finally:
        COUNTER.add(stalled_s=time.perf_counter() - start)


TRANSFERS = (offload, wait_offload, prefetch, wait_prefetch)
for _operation in TRANSFERS:
    has_side_effect(_operation)
