"""cost: write time and workspace into every operation's record, and state the planner's problem."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from torch import fx

from karma_fx.passes.annotate import is_required, joint_outputs
from karma_fx.planner.problem import Op, Problem
from karma_fx.profile.ops import cost_of, guess
from karma_fx.profile.store import Store
from karma_fx.record import NodeRecord, Phase, record_of
from karma_fx.work import Work

GETITEM_US = 0.1
RNG_STATE_BYTES = 5056
"""What ``torch.get_rng_state`` returns on the CPU; one is saved per recomputed random operation."""


def annotate_costs(work: Work, store: Store | None) -> None:
    """Fill in ``time_us`` and ``workspace_bytes``; measured, or by size where ``store`` is None."""
    for node, record in work.operations():
        if node.target is operator.getitem:
            record.time_us = GETITEM_US
            continue
        cost = (cost_of(node, store) if store is not None else None) or guess(node)
        made_bytes = sum(work.storages[s].nbytes for s in record.makes)
        record.time_us = cost.time_us
        record.workspace_bytes = max(0, cost.peak_bytes - made_bytes)
    if store is not None:
        store.flush()


def build_problem(work: Work) -> Problem:
    """The joint graph with its records, as the planner's plain data."""
    operations = list(work.operations())
    fw_outputs, bw_outputs = joint_outputs(work)
    return Problem(
        tuple(_op(node, record) for node, record in operations),
        tuple(work.storages),
        _indices(fw_outputs),
        _indices(bw_outputs),
        work.gradients,
        len(work.block_names),
        RNG_STATE_BYTES,
    )


def _op(node: fx.Node, record: NodeRecord) -> Op:
    return Op(
        node.name,
        record.phase is Phase.FORWARD,
        record.block,
        record.time_us,
        record.workspace_bytes,
        _indices(node.all_input_nodes),
        record.touches,
        record.makes,
        record.recomputable,
        record.seeded,
        is_required(node),
    )


def _indices(nodes: list[fx.Node]) -> tuple[int, ...]:
    records = (record_of(node) for node in nodes)
    return tuple(dict.fromkeys(r.index for r in records if r is not None))


@dataclass(frozen=True)
class Cost:
    """See the module's docstring. ``measure`` runs each distinct operation once."""

    measure: bool = True
    name: str = "cost"

    def apply(self, work: Work) -> None:
        annotate_costs(work, Store() if self.measure else None)
        work.problem = build_problem(work)
