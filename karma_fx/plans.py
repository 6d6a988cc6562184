"""A plan: every decision and its schedule, as data. JSON on disk.

A plan refers to operations and tensors of one joint graph by their position in it, and is bound to
that graph by its fingerprint. Reading a plan runs no code.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from karma_fx.errors import PlanError

FORMAT = "karma-plan"
VERSION = 1
MAX_FILE_BYTES = 256 << 20
END = -1
"""A position after the last operation of its graph."""


class Action(Enum):
    """What happens to a saved tensor between forward and backward."""

    KEEP = "keep"
    OFFLOAD = "offload"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A block: its name, how many forward operations it has, their predicted time."""

    name: str
    operations: int
    forward_us: float
    backward_us: float


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A saved tensor. ``made`` is the position of its operation in the joint graph."""

    name: str
    made: int
    block: int
    bytes: int
    action: Action


@dataclass(frozen=True, slots=True)
class MovePlan:
    """When an offloaded tensor moves. Each field is the joint-graph position of the operation that
    the node goes before, or ``END`` for the end of that graph. ``offload`` and ``wait_offload`` are
    in the forward graph, ``prefetch`` and ``wait_prefetch`` in the backward graph."""

    tensor: str
    offload: int
    wait_offload: int
    prefetch: int
    wait_prefetch: int


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the planner expects of one step (forward and backward). ``bound_us``: no plan of this
    graph under this budget is faster (``karma_fx.planner.bound``)."""

    step_us: float
    compute_us: float
    stall_us: float
    recompute_us: float
    peak_bytes: int
    moved_bytes: int
    bound_us: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Every decision for one joint graph under one budget."""

    graph: str
    device: str
    strategy: str
    budget_bytes: int
    blocks: tuple[BlockPlan, ...]
    tensors: tuple[TensorPlan, ...]
    schedule: tuple[MovePlan, ...]
    predicted: Predicted

    def action_of(self, name: str) -> Action | None:
        return next((t.action for t in self.tensors if t.name == name), None)

    def bytes_by_action(self) -> dict[Action, int]:
        """Total bytes of the saved tensors under each action."""
        return {a: sum(t.bytes for t in self.tensors if t.action is a) for a in Action}

    def to_json(self) -> str:
        body = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(body, indent=1, default=lambda value: value.value, allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write atomically: a reader sees the old file or the new one, never half of one."""
        target = Path(path)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".tmp")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(self.to_json())
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan file. Raises ``PlanError`` naming what is wrong with it."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PlanError(f"can't read the plan {os.fspath(path)!r}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise PlanError(f"the plan {os.fspath(path)!r} is larger than {MAX_FILE_BYTES >> 20} MiB")
    return parse_plan(data)


def parse_plan(data: bytes | str) -> Plan:
    """Parse a plan's JSON strictly. Raises ``PlanError`` naming the first thing that is wrong."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"not a plan: {error}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise PlanError(f'not a plan: its "format" is not "{FORMAT}"')
    if body.get("version") != VERSION:
        raise PlanError(f"plan version {body.get('version')!r}; this karma reads version {VERSION}")
    body = {k: v for k, v in body.items() if k not in ("format", "version")}
    return Plan(
        **_scalars(Plan, body, skip=("blocks", "tensors", "schedule", "predicted")),
        blocks=_records(BlockPlan, body, "blocks"),
        tensors=_records(TensorPlan, body, "tensors"),
        schedule=_records(MovePlan, body, "schedule"),
        predicted=Predicted(**_scalars(Predicted, body.get("predicted"), where="predicted")),
    )


def _records(kind: type[Any], body: dict[str, Any], key: str) -> tuple[Any, ...]:
    rows = body.get(key)
    if not isinstance(rows, list):
        raise PlanError(f'plan field "{key}" must be a list')
    return tuple(kind(**_scalars(kind, row, where=f"{key}[{i}]")) for i, row in enumerate(rows))


def _scalars(
    kind: type[Any], body: Any, *, skip: tuple[str, ...] = (), where: str = "plan"
) -> dict[str, Any]:
    """The fields of ``kind`` out of ``body``, each of its declared type; no others allowed."""
    if not isinstance(body, dict):
        raise PlanError(f"{where} must be an object")
    names = {f.name for f in fields(kind)}
    if unknown := sorted(set(body) - names):
        raise PlanError(f"{where} has unknown fields: {', '.join(map(repr, unknown))}")
    found: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in skip:
            continue
        if field.name not in body:
            raise PlanError(f'{where} lacks "{field.name}"')
        found[field.name] = _typed(str(field.type), body[field.name], f"{where}.{field.name}")
    return found


def _typed(declared: str, value: Any, where: str) -> Any:
    if declared == "Action":
        if value in [a.value for a in Action]:
            return Action(value)
        raise PlanError(f"{where} must be one of {[a.value for a in Action]}, not {value!r}")
    if declared == "float | None" and value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if declared.startswith("float") and is_number and abs(value) < float("inf"):
        return float(value)
    if declared == "int" and is_number and isinstance(value, int):
        return value
    if declared == "str" and isinstance(value, str):
        return value
    raise PlanError(f"{where} must be of type {declared}, not {type(value).__name__}")
