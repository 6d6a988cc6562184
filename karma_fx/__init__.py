"""karma-fx: train unedited PyTorch models inside a byte budget of near memory."""

from karma_fx.errors import (
    FarMemoryError,
    InfeasibleBudgetError,
    KarmaError,
    OptionError,
    PlanError,
    PlanMismatchError,
    UnsupportedError,
)
from karma_fx.offline import plan
from karma_fx.plans import Action, Plan, load_plan
from karma_fx.runtime.stats import Stats, reset_stats, stats

__version__ = "0.1.0"

__all__ = [
    "Action",
    "FarMemoryError",
    "InfeasibleBudgetError",
    "KarmaError",
    "OptionError",
    "Plan",
    "PlanError",
    "PlanMismatchError",
    "Stats",
    "UnsupportedError",
    "load_plan",
    "plan",
    "reset_stats",
    "stats",
]
