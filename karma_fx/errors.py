"""Named errors. Each message says what happened and what the user can do next."""

from __future__ import annotations


class KarmaError(Exception):
    """Base of every error that karma raises on purpose."""


class OptionError(KarmaError, ValueError):
    """An option has an unknown name or a bad value; the message names the valid ones."""


class InfeasibleBudgetError(KarmaError):
    """No plan fits the budget; ``smallest_bytes`` is the smallest budget found that does."""

    def __init__(self, message: str, *, budget_bytes: int, smallest_bytes: int) -> None:
        super().__init__(message)
        self.budget_bytes = budget_bytes
        self.smallest_bytes = smallest_bytes


class FarMemoryError(KarmaError):
    """Far memory could not be reserved, written or read (full disk, bad directory, I/O error)."""


class PlanError(KarmaError):
    """A plan file is malformed, or a plan is not legal."""


class PlanMismatchError(PlanError):
    """A plan was made for another graph; the message names the first difference."""


class VerifyError(KarmaError):
    """A rewritten graph breaks one of the rules of ``karma_fx.verify``. A bug of karma's."""


class UnsupportedError(KarmaError):
    """The graph needs something that karma does not do yet; the message says what."""
