"""What must hold after each pass. Checked between passes, always; a broken rule is a bug of karma's
(``VerifyError``), never the user's.

1. Every offload has exactly one wait_offload, and its handle, and nothing of the tensor, is
returned. 2. Nothing reads a tensor after its wait_offload; nothing but its wait reads a prefetched
tensor. 3. Every handle that backward gets has exactly one prefetch and one wait_prefetch. 4. Only
operations that may be are recomputed; random ones only with the state of their first run. 5. The
peak, read off the rewritten graphs, is what the plan predicted, and within its budget.
"""

from __future__ import annotations

from torch import fx

from karma_fx import ops, torch_compat
from karma_fx.errors import VerifyError
from karma_fx.graph_memory import is_transfer, step_peak
from karma_fx.passes.annotate import storage_key, tensors_of
from karma_fx.record import Phase, record_of
from karma_fx.units import format_bytes
from karma_fx.work import Work

PEAK_TOLERANCE = 0.02


def verify(work: Work, after: str) -> None:
    """Check what holds after the pass named ``after``. Raises ``VerifyError``."""
    if work.forward is None or work.backward is None:
        return
    check_recompute(work.backward.graph)
    if after == "transfers":
        check_offloads(work.forward.graph)
        check_prefetches(work.backward.graph)
        check_peak(work)


def _fail(rule: str, node: fx.Node) -> None:
    raise VerifyError(f"{rule}: {node.format_node()}")


def _only(nodes: list[fx.Node], rule: str, node: fx.Node) -> fx.Node:
    if len(nodes) != 1:
        _fail(f"{rule} (found {len(nodes)})", node)
    return nodes[0]


def check_recompute(backward: fx.Graph) -> None:
    """Rule 4."""
    for node in backward.nodes:
        record = record_of(node)
        if node.op != "call_function" or record is None or record.phase is Phase.BACKWARD:
            continue
        if is_transfer(node):
            continue
        if not record.recomputable:
            _fail("recomputes what may not be", node)
        if record.seeded and node.target is not torch_compat.run_with_rng_state:
            _fail("recomputes a random operation without its state", node)


def check_offloads(forward: fx.Graph) -> None:
    """Rules 1 and 2, forward."""
    place = {node: at for at, node in enumerate(forward.nodes)}
    output = forward.output_node()
    released: dict[tuple[str, int], int] = {}
    for node in forward.find_nodes(op="call_function", target=ops.offload):
        wait = _only(_users(node, ops.wait_offload), "an offload needs one wait_offload", node)
        if wait.args[1] is not node.args[1]:
            _fail("wait_offload of another tensor", wait)
        if output not in wait.users:
            _fail("an offloaded tensor's handle is not returned", wait)
        released.update((storage_key(t), place[wait]) for t in tensors_of(_arg(node, 1)))
    for node in forward.nodes:
        for source in node.all_input_nodes:
            for tensor in tensors_of(source):
                if place[node] > released.get(storage_key(tensor), place[node]):
                    _fail(f"reads {source.name} after its release", node)


def check_prefetches(backward: fx.Graph) -> None:
    """Rules 2 and 3, backward."""
    for node in backward.find_nodes(op="call_function", target=ops.prefetch):
        handle = _arg(node, 0)
        wait = _only(list(node.users), "a prefetch is read by its wait alone", node)
        if wait.target is not ops.wait_prefetch or wait.args != (node, handle):
            _fail("a prefetch without its wait_prefetch", node)
        others = [user for user in handle.users if user not in (node, wait)]
        if others:
            _fail("reads a far tensor's handle", others[0])
        _only(_users(handle, ops.prefetch), "a handle needs one prefetch", handle)


def check_peak(work: Work) -> None:
    """Rule 5."""
    assert work.plan is not None and work.forward is not None and work.backward is not None
    peak = step_peak(
        work.forward.graph, work.backward.graph, work.joint.graph, work.num_fwd_outputs
    )
    predicted, budget = work.plan.predicted.peak_bytes, work.plan.budget_bytes
    if peak > budget:
        raise VerifyError(
            f"the rewritten graphs need {format_bytes(peak)}, over the budget of "
            f"{format_bytes(budget)} (predicted: {format_bytes(predicted)})"
        )
    if abs(peak - predicted) > PEAK_TOLERANCE * max(peak, predicted) + 65536:
        raise VerifyError(
            f"the rewritten graphs need {format_bytes(peak)}, predicted: {format_bytes(predicted)}"
        )


def _users(node: fx.Node, target: object) -> list[fx.Node]:
    return [user for user in node.users if user.target is target]


def _arg(node: fx.Node, index: int) -> fx.Node:
    value = node.args[index]
    assert isinstance(value, fx.Node)
    return value
