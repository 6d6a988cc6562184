"""Tiers that are in use, shared by all graphs of the process that name the same far memory."""

from __future__ import annotations

import threading
import weakref

from karma_fx.runtime.factory import make_tier
from karma_fx.runtime.tier import Tier


class SharedTier:
    """Keeps a tier open for as long as somebody holds this object."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.reserved_bytes = 0
        self._finalizer = weakref.finalize(self, tier.close)

    def reserve_more(self, nbytes: int) -> None:
        """One more graph needs ``nbytes`` at once. Raises ``FarMemoryError``."""
        self.tier.reserve(self.reserved_bytes + nbytes)
        self.reserved_bytes += nbytes


_shared: weakref.WeakValueDictionary[str, SharedTier] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_tier(far: str) -> SharedTier:
    """The open tier for ``far`` ("disk", "disk:DIR", "ram", "poison"), opened if need be.

    Raises ``FarMemoryError`` when it can't be opened.
    """
    with _lock:
        found = _shared.get(far)
        if found is None:
            found = _shared[far] = SharedTier(make_tier(far))
        return found


def use_tier(far: str, tier: Tier) -> SharedTier:
    """Let graphs compiled from now on use ``tier`` where their options name ``far``, for as long as
    the result is held. For tests and for tiers of one's own."""
    with _lock:
        shared = _shared[far] = SharedTier(tier)
        return shared
