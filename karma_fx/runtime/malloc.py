"""Let memory that is freed go back to the operating system at once."""

from __future__ import annotations

import ctypes

from karma_fx.units import MIB

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def return_freed_memory(threshold_bytes: int = MIB) -> bool:
    """Make glibc take every block of at least ``threshold_bytes`` straight from the system.

    By default glibc raises that threshold to 32 MiB as blocks are freed, and keeps what is freed
    below it in its heap, so that a process never gives back what tensors have held. Its heap is
    trimmed at twice the threshold, glibc's own rule. Holds for the whole process. Returns False,
    and changes nothing, where the C library has no ``mallopt``.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    mallopt(_M_TRIM_THRESHOLD, 2 * threshold_bytes)
    return bool(mallopt(_M_MMAP_THRESHOLD, threshold_bytes))
