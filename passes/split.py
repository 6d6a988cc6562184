"""split: joint graph and plan -> forward and backward graphs.

torch's own extraction does the cut, so that AOTAutograd's conventions hold; the plan says exactly
which storages cross it. Random operations that run again in backward replay the state of their
first run. Then backward's operations are put into the plan's order: recomputed ones just before
their need.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from karma_fx import torch_compat
from karma_fx.errors import VerifyError
from karma_fx.passes.annotate import backward_nodes
from karma_fx.planner.sequence import Sequence
from karma_fx.record import KEY, record_of
from karma_fx.work import Work


def nodes_to_save(work: Work, sequence: Sequence) -> list[fx.Node]:
    """Inputs of the joint graph, then the tensors that own the saved storages, in order."""
    primals = [
        node
        for node in work.joint.graph.find_nodes(op="placeholder")
        if not torch_compat.is_tangent(node)
        and not torch_compat.is_seed(node)
        and not torch_compat.is_sym_node(node)
    ]
    roots = {work.storages[s].root for s in sequence.saved}
    return primals + [node for node, record in work.operations() if record.index in roots]


def sizes_to_save(work: Work) -> list[fx.Node]:
    """SymInts that forward can compute; torch drops those that backward does not use."""
    behind = backward_nodes(work)
    needs_tangent: set[fx.Node] = set()
    for node in work.joint.graph.nodes:
        if torch_compat.is_tangent(node) or needs_tangent.intersection(node.all_input_nodes):
            needs_tangent.add(node)
    return [
        node
        for node in work.joint.graph.nodes
        if torch_compat.is_sym_node(node)
        and node not in needs_tangent
        and not (node.op == "call_function" and _reads_backward(node, behind))
    ]


def _reads_backward(node: fx.Node, behind: set[fx.Node]) -> bool:
    sources = (n for n in node.all_input_nodes if not torch_compat.is_sym_node(n))
    return any(source in behind for source in sources)


def mark_replays(backward: fx.GraphModule, recomputed: list[fx.Node]) -> None:
    """Give torch's RNG-replaying nodes the records of the operations that they run again."""
    replays = [n for n in backward.graph.nodes if n.target is torch_compat.run_with_rng_state]
    if len(replays) != len(recomputed):
        raise VerifyError(f"{len(recomputed)} random operations to replay, {len(replays)} paired")
    for node, original in zip(replays, recomputed, strict=True):
        node.meta.update({k: original.meta[k] for k in ("val", KEY) if k in original.meta})


def reorder(graph: fx.Graph, order: tuple[int, ...]) -> None:
    """Put the operations of ``graph`` into ``order`` (joint-graph indices). Nodes that are no
    operations (sizes, constants) go just before their first user; what nobody needs is erased."""
    by_index = {}
    for node in graph.nodes:
        record = record_of(node)
        if node.op == "call_function" and record is not None:
            by_index[record.index] = node
    placeholders = graph.find_nodes(op="placeholder")
    placed = set(placeholders)
    wanted: list[fx.Node] = []

    def emit(node: fx.Node) -> None:
        todo = [(node, False)]
        while todo:
            current, ready = todo.pop()
            if current in placed:
                continue
            if ready:
                placed.add(current)
                wanted.append(current)
            else:
                todo.append((current, True))
                todo.extend((source, False) for source in reversed(current.all_input_nodes))

    for index in order:
        emit(by_index[index])
    output = graph.output_node()
    for source in output.all_input_nodes:
        emit(source)
    cursor = placeholders[-1]
    for node in wanted:
        cursor.append(node)
        cursor = node
    for node in reversed(list(graph.nodes)):
        if node not in placed and node is not output:
            graph.erase_node(node)
    graph.lint()


@dataclass(frozen=True)
class Split:
    """See the module's docstring."""

    name: str = "split"

    def apply(self, work: Work) -> None:
        sequence = work.sequence
        assert sequence is not None
        fw, bw, num_syms = torch_compat.extract_forward_backward(
            work.joint, nodes_to_save(work, sequence), sizes_to_save(work), work.num_fwd_outputs
        )
        replayed = [n for n, r in work.operations() if r.seeded and r.index in sequence.recomputed]
        fw, bw = torch_compat.pair_rng(work.joint, fw, bw, replayed, num_syms)
        mark_replays(bw, replayed)
        reorder(bw.graph, sequence.backward)
        bw.recompile()
        work.forward, work.backward = fw, bw
