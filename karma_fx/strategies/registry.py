"""Strategies by name."""

from __future__ import annotations

from karma_fx.strategies.checkmate import checkmate
from karma_fx.strategies.checkpoint import checkpoint
from karma_fx.strategies.decision import Strategy
from karma_fx.strategies.karma import karma
from karma_fx.strategies.karma20 import karma20
from karma_fx.strategies.keep import keep
from karma_fx.strategies.knapsack import knapsack
from karma_fx.strategies.offload import offload
from karma_fx.strategies.recompute import recompute
from karma_fx.strategies.sqrt import sqrt
from karma_fx.strategies.superneurons import superneurons

STRATEGIES: dict[str, Strategy] = {
    "karma": karma,
    "keep": keep,
    "offload": offload,
    "superneurons": superneurons,
    "karma20": karma20,
    "checkpoint": checkpoint,
    "sqrt": sqrt,
    "knapsack": knapsack,
    "checkmate": checkmate,
    "recompute": recompute,
}
