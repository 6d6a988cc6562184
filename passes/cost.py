"""cost: write time and workspace into every operation's record, and state the planner's problem.

Costs are measured on this machine, one distinct operation at a time, or estimated for a device that
is only described.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

from torch import fx

from karma_fx.passes.annotate import is_required, joint_outputs
from karma_fx.planner.problem import Op, Problem
from karma_fx.profile.devices import DeviceProfile
from karma_fx.profile.estimate import estimate_us, flops
from karma_fx.profile.ops import cost_of, guess
from karma_fx.profile.store import Store
from karma_fx.record import NodeRecord, Phase, record_of
from karma_fx.runtime.malloc import return_freed_memory
from karma_fx.work import Work

GETITEM_US = 0.1
RNG_STATE_BYTES = 5056
"""What ``torch.get_rng_state`` returns on the CPU; one is saved per recomputed random operation."""


def measure_costs(work: Work) -> None:
    """Fill in ``time_us`` and ``workspace_bytes`` as measured here, or found in the store."""
    return_freed_memory()  # as when the graph runs: fresh pages are a large part of some costs
    store = Store()
    for node, record in work.operations():
        if node.target is operator.getitem:
            record.time_us = GETITEM_US
            continue
        cost = cost_of(node, store) or guess(node)
        made_bytes = sum(work.storages[s].nbytes for s in record.makes)
        record.time_us = cost.time_us
        record.workspace_bytes = max(0, cost.peak_bytes - made_bytes)
    store.flush()


def estimate_costs(work: Work, device: DeviceProfile) -> None:
    """Fill in ``time_us``; nothing is known of workspace."""
    for node, record in work.operations():
        record.time_us = estimate_us(node, device)


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
        flops(node) > 0,
        node.target is operator.getitem,
    )


def _indices(nodes: list[fx.Node]) -> tuple[int, ...]:
    records = (record_of(node) for node in nodes)
    return tuple(dict.fromkeys(r.index for r in records if r is not None))


@dataclass(frozen=True)
class Cost:
    """See the module's docstring. ``device`` None means: measure."""

    device: DeviceProfile | None = None
    name: str = "cost"

    def apply(self, work: Work) -> None:
        if self.device is None:
            measure_costs(work)
        else:
            estimate_costs(work, self.device)
        work.problem = build_problem(work)
