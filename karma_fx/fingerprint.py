"""What binds a plan to a graph: a hash of the joint graph that depends on no node's name."""

from __future__ import annotations

import hashlib

from karma_fx.profile.ops import op_key
from karma_fx.record import record_of
from karma_fx.work import Work


def fingerprint(work: Work) -> str:
    """SHA-256 over inputs, operations with their arguments (by position), and outputs; sizes are
    concrete (hints for symbolic ones)."""
    digest = hashlib.sha256()
    numbers: dict[object, int] = {}
    for number, node in enumerate(work.joint.graph.nodes):
        numbers[node] = number
        sources = [numbers[source] for source in node.all_input_nodes]
        phase = record.phase.value if (record := record_of(node)) else ""
        digest.update(f"{node.op} {op_key(node)} {sources} {phase}\n".encode())
    digest.update(str(work.num_fwd_outputs).encode())
    return digest.hexdigest()
