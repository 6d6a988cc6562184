"""Strategies by name."""

from __future__ import annotations

from karma_fx.strategies.checkpoint import checkpoint
from karma_fx.strategies.decision import Strategy
from karma_fx.strategies.karma import karma
from karma_fx.strategies.keep import keep
from karma_fx.strategies.offload import offload
from karma_fx.strategies.recompute import recompute

STRATEGIES: dict[str, Strategy] = {
    "karma": karma,
    "keep": keep,
    "offload": offload,
    "recompute": recompute,
    "checkpoint": checkpoint,
}
