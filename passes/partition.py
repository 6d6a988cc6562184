"""partition: cut the forward operations into blocks, and give backward operations their block.

A cut between two operations is as wide as the activations that cross it. Blocks end at narrow
cuts: those narrower than every other cut in their neighbourhood, and either crossed by a single
activation (a residual stream, say, and not the middle of an attention) or not much wider than the
narrowest one further around (a U-Net, whose skips cross every cut). Of equally narrow neighbours
the last is taken, so that a block ends after its activation function, not before it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import maximum_filter1d, minimum_filter1d
from torch import fx

from karma_fx.planner.problem import Storage
from karma_fx.record import NodeRecord, Phase
from karma_fx.work import Work

_FAR_OPS = 24
"""A cut is compared with all others within at least this many operations."""

_LEAST_OPS = 3
"""No block but the last has fewer operations, except in graphs with few."""

_SCALAR = 64
"""Cuts this many times narrower than the widest (a loss) say nothing of what is narrow here."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What crosses from an operation (and all before it) to those after it: activations."""

    nbytes: int
    tensors: int


def cuts_between(forward: list[NodeRecord], storages: list[Storage]) -> list[Cut]:
    """``cuts[i]``: between operation ``i`` and the one after it."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, record in enumerate(forward):
        for s in record.touches:
            if storages[s].root >= 0:
                first.setdefault(s, position)
                last[s] = position
    delta = np.zeros((len(forward) + 1, 2), dtype=np.int64)
    for s, start in first.items():
        delta[start] += storages[s].nbytes, 1
        delta[last[s]] -= storages[s].nbytes, 1
    return [Cut(int(nbytes), int(count)) for nbytes, count in np.cumsum(delta, axis=0)[:-1]]


def made_bytes(forward: list[NodeRecord], storages: list[Storage]) -> list[int]:
    """Bytes of activations that each operation makes."""
    return [sum(storages[s].nbytes for s in record.makes) for record in forward]


def choose_cuts(between: list[Cut], made: list[int], max_blocks: int, wide: float) -> list[int]:
    """Positions after which a block ends (the last operation not among them). No block makes less
    than its share (half of the average over ``max_blocks``) of the activations."""
    n = len(between)
    near = max(2, n // (4 * max_blocks))
    far = max(near, n // 8, _FAR_OPS)
    least = min(_LEAST_OPS, n // max_blocks + 1)
    share = sum(made) / (2 * max_blocks)
    width = np.array([cut.nbytes for cut in between[:-1]], dtype=float)
    single = np.array([cut.tensors == 1 for cut in between[:-1]])
    if not len(width):
        return []
    narrowest = minimum_filter1d(width, 2 * near + 1, mode="nearest")
    scalar = width < maximum_filter1d(width, 2 * far + 1, mode="nearest") / _SCALAR
    floor = minimum_filter1d(np.where(scalar, np.inf, width), 2 * far + 1, mode="nearest")
    narrow = (width > 0) & (width <= narrowest) & (single & ~scalar | (width <= wide * floor))
    cuts: list[int] = []
    since = count = 0
    for i in range(n - 1):
        since, count = since + made[i], count + 1
        last_narrow = not narrow[i + 1 : i + 2].any() or narrow[i + 2 : i + 3].any()
        if narrow[i] and last_narrow and since >= max(share, 1) and count >= least:
            cuts.append(i)
            since = count = 0
    return cuts


def block_name(nodes: list[fx.Node], index: int) -> str:
    """The deepest module path that most of the block's operations share."""
    paths: Counter[str] = Counter()
    for node in nodes:
        stack = node.meta.get("nn_module_stack") or {}
        for path, _ in stack.values():
            cleaned = _clean(path)
            if cleaned:
                paths[cleaned] += 1
    most = max(paths.values(), default=0)
    shared = [path for path, count in paths.items() if count >= 0.6 * most]
    return max(shared, key=len) if shared else f"block{index}"


def _clean(path: str) -> str:
    """``L['self']._modules['blocks']._modules['3']`` -> ``blocks.3``."""
    path = path.replace("L['self']", "").replace("._modules", "")
    for old in ("['", "']", '["', '"]', "[", "]"):
        path = path.replace(old, ".")
    return ".".join(part for part in path.split(".") if part)


def assign_backward(work: Work, block_of_seq: dict[int, int], num_blocks: int) -> None:
    """Backward operations belong to the block of the forward operation that autograd made them
    for (the same ``seq_nr``); blocks never rise along backward."""
    current = num_blocks - 1
    for node, record in work.operations():
        if record.phase is Phase.BACKWARD:
            own = block_of_seq.get(node.meta.get("seq_nr", -1), current)
            current = min(current, own)
            record.block = current


@dataclass(frozen=True)
class Partition:
    """See the module's docstring. At most about ``max_blocks`` blocks; a cut may be ``wide`` times
    as wide as the narrow ones around it."""

    max_blocks: int = 48
    wide: float = 1.3
    name: str = "partition"

    def apply(self, work: Work) -> None:
        forward = [(n, r) for n, r in work.operations() if r.phase is Phase.FORWARD]
        records = [record for _, record in forward]
        between, made = cuts_between(records, work.storages), made_bytes(records, work.storages)
        cuts = set(choose_cuts(between, made, self.max_blocks, self.wide))
        block, members, names = 0, [], []
        block_of_seq: dict[int, int] = {}
        for position, (node, record) in enumerate(forward):
            record.block = block
            block_of_seq[node.meta.get("seq_nr", -1)] = block
            members.append(node)
            if position in cuts or position == len(forward) - 1:
                names.append(block_name(members, block))
                block, members = block + 1, []
        work.block_names = names or ["block0"]
        assign_backward(work, block_of_seq, len(work.block_names))
