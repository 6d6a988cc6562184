"""What tiers with real copies share: slots, and one worker thread a direction.

Both queues are FIFO, and all stores go through one of them. So a slot may be taken again while a
store into it is still queued: the new store comes after the old one.
"""

from __future__ import annotations

import os
import threading
from functools import partial

import torch

from karma_fx.errors import FarMemoryError
from karma_fx.runtime.slots import Slots, whole_pages
from karma_fx.runtime.tier import Slot, Transfer
from karma_fx.runtime.worker import Worker, check_process


class QueuedTier:
    """Base of tiers that hold one address space of bytes.

    Implementations give ``_extend`` (make the space at least that large; one call at a time, may
    raise ``FarMemoryError``), ``_write`` and ``_read`` (copy between an address of near memory and
    an offset; called on the worker threads) and ``_shut`` (drop all bytes).
    """

    name = "queued"

    def __init__(self) -> None:
        self._slots = Slots()
        self._out, self._in = Worker("karma-out"), Worker("karma-in")
        self._size = 0
        self._growing = threading.Lock()
        self._process = os.getpid()
        self._closed = False

    def reserve(self, nbytes: int) -> None:
        self._check_usable()
        with self._growing:
            if whole_pages(nbytes) > self._size:
                self._extend(whole_pages(nbytes))
                self._size = whole_pages(nbytes)

    def alloc(self, nbytes: int) -> Slot:
        self._check_usable()
        slot = self._slots.alloc(nbytes)
        end = slot.offset + whole_pages(nbytes)  # not the slots' end: that may have been refused
        if end > self._size:
            try:
                self.reserve(end)
            except BaseException:
                self._slots.free(slot)
                raise
        return slot

    def free(self, slot: Slot) -> None:
        self._slots.free(slot)

    def store(self, near: torch.Tensor, slot: Slot) -> Transfer:
        _check(near, slot)
        return self._out.submit(partial(self._copy_out, near, slot))

    def load(self, slot: Slot, near: torch.Tensor) -> Transfer:
        _check(near, slot)
        return self._in.submit(partial(self._copy_in, slot, near))

    def released(self, near: torch.Tensor) -> None:
        """Nothing to do."""

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._process:  # a forked child has no such threads
            self._out.close()
            self._in.close()
        self._shut()

    def _check_usable(self) -> None:
        check_process(self._process)
        if self._closed:
            raise FarMemoryError("far memory is closed")

    def _copy_out(self, near: torch.Tensor, slot: Slot) -> None:
        if near.numel():
            self._write(near.data_ptr(), slot.offset, slot.nbytes)

    def _copy_in(self, slot: Slot, near: torch.Tensor) -> None:
        if near.numel():
            self._read(slot.offset, near.data_ptr(), slot.nbytes)

    def _extend(self, nbytes: int) -> None:
        raise NotImplementedError

    def _write(self, address: int, offset: int, nbytes: int) -> None:
        raise NotImplementedError

    def _read(self, offset: int, address: int, nbytes: int) -> None:
        raise NotImplementedError

    def _shut(self) -> None:
        raise NotImplementedError


def _check(near: torch.Tensor, slot: Slot) -> None:
    flat = near.dtype is torch.uint8 and near.ndim == 1 and near.is_contiguous()
    if not flat or near.numel() != slot.nbytes:
        raise ValueError(f"near must be {slot.nbytes} flat bytes, not {tuple(near.shape)}")
