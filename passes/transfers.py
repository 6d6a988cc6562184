"""transfers: insert offload / wait_offload / prefetch / wait_prefetch where the plan says.

Decides nothing. In the forward graph a saved tensor's place in the outputs is taken by its handle;
in the backward graph its placeholder becomes the handle's, and readers read what
``wait_prefetch`` gives. Before one operation, transfers start first and are waited for after.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from karma_fx import ops, torch_compat
from karma_fx.errors import PlanError
from karma_fx.plans import END, MovePlan
from karma_fx.record import record_of
from karma_fx.runtime.pool import shared_tier
from karma_fx.work import Work

ENGINE = "karma_far_memory"
"""The attribute of the forward module that holds the tier."""


def by_index(graph: fx.Graph) -> dict[int, fx.Node]:
    """Operations of ``graph`` by their position in the joint graph."""
    records = ((node, record_of(node)) for node in graph.nodes if node.op == "call_function")
    return {record.index: node for node, record in records if record is not None}


def _anchor(nodes: dict[int, fx.Node], graph: fx.Graph, position: int) -> fx.Node:
    if position == END:
        return graph.output_node()
    if position not in nodes:
        raise PlanError(f"the plan moves a tensor before operation {position}, which does not run")
    return nodes[position]


def offload_saved(
    graph: fx.Graph,
    schedule: tuple[MovePlan, ...],
    roots: dict[str, int],
    fake_handle: torch.Tensor,
) -> None:
    """Insert the forward half."""
    nodes = by_index(graph)
    output = graph.output_node()
    anchors = [_anchor(nodes, graph, move.wait_offload) for move in schedule]
    starts = [_anchor(nodes, graph, move.offload) for move in schedule]
    with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
        engine = graph.create_node("get_attr", ENGINE)
    started = []
    for move, start in zip(schedule, starts, strict=True):
        tensor = nodes[roots[move.tensor]]
        with graph.inserting_before(start):
            far = graph.call_function(ops.offload, (engine, tensor))
        started.append((far, tensor))
    for (far, tensor), anchor in zip(started, anchors, strict=True):
        with graph.inserting_before(anchor):
            done = graph.call_function(ops.wait_offload, (far, tensor))
        far.meta["val"] = done.meta["val"] = fake_handle
        output.replace_input_with(tensor, done)


def prefetch_saved(
    graph: fx.Graph,
    schedule: tuple[MovePlan, ...],
    roots: dict[str, int],
    fake_handle: torch.Tensor,
) -> None:
    """Insert the backward half."""
    nodes = by_index(graph)
    handles = {
        record.index: node
        for node in graph.find_nodes(op="placeholder")
        if (record := record_of(node)) is not None
    }
    started = []
    for move in schedule:
        handle = handles[roots[move.tensor]]
        readers = list(handle.users)
        with graph.inserting_before(_anchor(nodes, graph, move.prefetch)):
            near = graph.call_function(ops.prefetch, (handle,))
        started.append((handle, near, readers))
    for move, (handle, near, readers) in zip(schedule, started, strict=True):
        with graph.inserting_before(_anchor(nodes, graph, move.wait_prefetch)):
            ready = graph.call_function(ops.wait_prefetch, (near, handle))
        near.meta["val"] = ready.meta["val"] = handle.meta["val"]
        handle.meta = {"val": fake_handle}
        for reader in readers:
            reader.replace_input_with(handle, ready)


@dataclass(frozen=True)
class Transfers:
    """See the module's docstring."""

    name: str = "transfers"

    def apply(self, work: Work) -> None:
        plan, fw, bw = work.plan, work.forward, work.backward
        assert plan is not None and fw is not None and bw is not None
        if not plan.schedule:
            return
        engine = shared_tier(work.options.far)
        sizes = {tensor.name: tensor.bytes for tensor in plan.tensors}
        engine.reserve_more(sum(sizes[move.tensor] for move in plan.schedule))
        roots = {tensor.name: tensor.made for tensor in plan.tensors}
        fake_handle = torch_compat.fake_like(
            lambda: torch.empty(1, dtype=torch.int64), next(iter(bw.graph.nodes))
        )
        setattr(fw, ENGINE, engine)
        offload_saved(fw.graph, plan.schedule, roots, fake_handle)
        prefetch_saved(bw.graph, _by_prefetch(plan.schedule, bw.graph), roots, fake_handle)
        for module in (fw, bw):
            module.graph.lint()
            module.recompile()


def _by_prefetch(schedule: tuple[MovePlan, ...], graph: fx.Graph) -> tuple[MovePlan, ...]:
    """In the order of the in-queue: by prefetch position, then by first use."""
    place = {index: at for at, index in enumerate(by_index(graph))}
    end = len(place)

    def key(move: MovePlan) -> tuple[int, int]:
        return place.get(move.prefetch, end), place.get(move.wait_prefetch, end)

    return tuple(sorted(schedule, key=key))
