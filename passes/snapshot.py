"""snapshot: copy inputs that forward overwrites and backward still needs as they were.

AOTAutograd writes changed buffers and inputs back by ``copy_`` at the end of forward. A backward
operation that reads such an input (or a view of it) would see the new value. Here each of them is
cloned at the start of forward, and every reader but the write itself uses the clone, which then is
a saved tensor like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from karma_fx.passes.annotate import (
    backward_nodes,
    is_mutable,
    mutated_inputs,
    storage_key,
    tensors_of,
)
from karma_fx.work import Work


def inputs_to_copy(work: Work) -> list[fx.Node]:
    """Overwritten inputs of which some backward operation reads the storage."""
    read = {
        storage_key(tensor)
        for node in backward_nodes(work)
        for source in node.all_input_nodes
        for tensor in tensors_of(source)
    }
    return [
        node
        for node in work.joint.graph.find_nodes(op="placeholder")
        if node in mutated_inputs(work.joint.graph)
        and any(storage_key(tensor) in read for tensor in tensors_of(node))
    ]


def copy_input(graph: fx.Graph, node: fx.Node) -> None:
    """Clone ``node`` after the placeholders, and let all but the write-back read the clone."""
    first = next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(first):
        clone = graph.call_function(torch.ops.aten.clone.default, (node,))
    clone.meta["val"] = node.meta["val"].clone()
    clone.meta["partitioner_tag"] = "is_forward"
    node.replace_all_uses_with(
        clone, delete_user_cb=lambda user: user is not clone and not _writes_into(user, node)
    )

    _rederive_views(clone, storage_key(node.meta["val"]))


def _rederive_views(clone: fx.Node, old: tuple[str, int]) -> None:
    """Let the fake values of views of the input become views of the clone."""
    todo = list(clone.users)
    while todo:
        node = todo.pop(0)
        if node.op != "call_function" or is_mutable(node):
            continue
        if any(storage_key(tensor) == old for tensor in tensors_of(node)):
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
            todo.extend(node.users)


def _writes_into(user: fx.Node, node: fx.Node) -> bool:
    return is_mutable(user) and bool(user.args) and user.args[0] is node


@dataclass(frozen=True)
class Snapshot:
    """See the module's docstring."""

    name: str = "snapshot"

    def apply(self, work: Work) -> None:
        for node in inputs_to_copy(work):
            copy_input(work.joint.graph, node)
