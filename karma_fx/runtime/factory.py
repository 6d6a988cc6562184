"""From the option ``far`` to a tier."""

from __future__ import annotations

from karma_fx.runtime.disk import DiskTier
from karma_fx.runtime.poison import PoisonTier
from karma_fx.runtime.ram import RamTier
from karma_fx.runtime.tier import Tier


def make_tier(far: str) -> Tier:
    """``far`` is "disk", "disk:DIR", "ram" or "poison", as checked by ``karma_fx.options``.

    Raises ``FarMemoryError`` when the tier can't be opened.
    """
    if far == "ram":
        return RamTier()
    if far == "poison":
        return PoisonTier()
    directory = far.removeprefix("disk").removeprefix(":")
    return DiskTier(directory or None)
