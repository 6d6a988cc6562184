"""Near memory of a rewritten graph, node by node, from the graph itself.

The planner predicts from its own plain data; this reads the FX graphs that will run. Two accounts
of one thing, kept apart so that the verifier can compare them.
"""

from __future__ import annotations

from torch import fx
from torch.utils import _pytree as pytree

from karma_fx import ops
from karma_fx.passes.annotate import storage_bytes, storage_key, tensors_of
from karma_fx.record import record_of


def near_curve(graph: fx.Graph, outside: dict[tuple[str, int], int]) -> list[int]:
    """Near bytes during each node of ``graph``: live storages plus the node's workspace.

    ``outside`` gives the storages that the caller holds throughout (key -> bytes); it counts for
    every node. Inputs that are not in it die at their last use, outputs live to the end.
    """
    nodes = list(graph.nodes)
    place = {node: at for at, node in enumerate(nodes)}
    spans: dict[tuple[object, ...], list[int]] = {}  # key -> [bytes, first, last]
    for at, node in enumerate(nodes):
        last = max((place[user] for user in node.users), default=at)
        for tensor in tensors_of(node):
            key: tuple[object, ...] = storage_key(tensor)
            if key in spans and _makes_again(node):
                key = (*key, node)  # a second copy of a storage that was saved as well
            if key not in outside:
                span = spans.setdefault(key, [storage_bytes(tensor), at, last])
                span[2] = max(span[2], last)
    delta = [0] * (len(nodes) + 1)
    for nbytes, first, last in spans.values():
        delta[first] += nbytes
        delta[last + 1] -= nbytes
    curve, live = [], sum(outside.values())
    for at, node in enumerate(nodes):
        live += delta[at]
        record = record_of(node) if node.op == "call_function" else None
        curve.append(live + (record.workspace_bytes if record is not None else 0))
    return curve


def _makes_again(node: fx.Node) -> bool:
    record = record_of(node) if node.op == "call_function" else None
    return record is not None and bool(record.makes) and not is_transfer(node)


def caller_storages(graph: fx.Graph, names: set[str] | None = None) -> dict[tuple[str, int], int]:
    """Storages of the placeholders (of those in ``names``, if given), which the caller holds."""
    return {
        storage_key(tensor): storage_bytes(tensor)
        for node in graph.find_nodes(op="placeholder")
        if names is None or node.name in names
        for tensor in tensors_of(node)
    }


def step_peak(forward: fx.Graph, backward: fx.Graph, joint: fx.Graph, num_fwd_outputs: int) -> int:
    """The most near bytes that forward and then backward hold, parameters and inputs included."""
    given = {n.name for n in joint.find_nodes(op="placeholder") if "tangents" not in n.name}
    outside = {**caller_storages(joint, given), **dict.fromkeys(_handles(forward, backward), 0)}
    peak = max(near_curve(forward, outside))
    outputs = pytree.arg_tree_leaves(*joint.output_node().args)[:num_fwd_outputs]
    held = {
        storage_key(tensor): storage_bytes(tensor)
        for node in outputs
        if isinstance(node, fx.Node)
        for tensor in tensors_of(node)
    }
    tangents = {n.name for n in backward.find_nodes(op="placeholder") if "tangents" in n.name}
    during = {**outside, **held, **caller_storages(backward, tangents)}
    return max(peak, *near_curve(backward, during))


def _handles(forward: fx.Graph, backward: fx.Graph) -> set[tuple[str, int]]:
    """Storages of far tensors' handles, which are not the allocator's: no near bytes to count."""
    nodes = [*forward.find_nodes(op="call_function", target=ops.offload)]
    nodes += [n.args[0] for n in backward.find_nodes(op="call_function", target=ops.prefetch)]
    return {storage_key(tensor) for node in nodes for tensor in tensors_of(node)}


def is_transfer(node: fx.Node) -> bool:
    """True for karma's own four operations."""
    return node.op == "call_function" and node.target in ops.TRANSFERS
