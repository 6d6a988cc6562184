"""What the planner sees of a joint graph: operations, storages, costs. No torch in here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of the joint graph.

    ``inputs`` are indices of operations, ``touches`` and ``makes`` ids of storages.
    """

    name: str
    forward: bool
    block: int
    time_us: float
    workspace_bytes: int
    inputs: tuple[int, ...]
    touches: tuple[int, ...]
    makes: tuple[int, ...]
    recomputable: bool
    seeded: bool = False
    required: bool = False  # runs for its effect: a write into a buffer, an assertion
    heavy: bool = False  # a matrix product, a convolution, attention
    unpacks: bool = False  # takes one output out of what its only input made


@dataclass(frozen=True, slots=True)
class Storage:
    """One run of near bytes.

    ``root`` is the operation whose output is the tensor that owns it, or -1 when it comes from
    outside (a parameter, buffer, input or tangent: always near, and charged to the budget).
    ``pinned`` storages are outputs, held by the caller until the step ends. ``savable`` ones are
    owned by a tensor of the graph, ``movable`` ones by an ordinary strided tensor.
    """

    name: str
    nbytes: int
    root: int
    pinned: bool = False
    tangent: bool = False
    savable: bool = True
    movable: bool = True


@dataclass(frozen=True)
class Problem:
    """A joint graph, as the planner sees it. ``forward_outputs`` and ``backward_outputs`` are
    operations, ``gradients`` the storages that the backward outputs hold; ``rng_bytes`` is what
    replaying one random operation saves."""

    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    forward_outputs: tuple[int, ...]
    backward_outputs: tuple[int, ...]
    gradients: frozenset[int]
    num_blocks: int
    rng_bytes: int = 0

    @cached_property
    def forward_ops(self) -> tuple[int, ...]:
        return tuple(i for i, op in enumerate(self.ops) if op.forward)

    @cached_property
    def backward_ops(self) -> tuple[int, ...]:
        """The operations of backward proper that some gradient (or effect) needs, in order."""
        wanted = set(self.backward_outputs)
        wanted.update(i for i, op in enumerate(self.ops) if op.required and not op.forward)
        live = self.closure(wanted, stop=lambda i: self.ops[i].forward)
        return tuple(sorted(i for i in live if not self.ops[i].forward))

    @cached_property
    def forward_inputs(self) -> tuple[tuple[int, ...], ...]:
        """Operation -> those of its inputs that are forward operations."""
        return tuple(tuple(j for j in op.inputs if self.ops[j].forward) for op in self.ops)

    @cached_property
    def base_bytes(self) -> int:
        """What the caller holds near for the whole step: parameters, buffers, inputs."""
        return sum(s.nbytes for s in self.storages if s.root < 0 and not s.tangent)

    @cached_property
    def tangent_bytes(self) -> int:
        return sum(s.nbytes for s in self.storages if s.tangent)

    @cached_property
    def root_storage(self) -> dict[int, int]:
        """Operation -> the storage that it is the root of."""
        return {s.root: i for i, s in enumerate(self.storages) if s.root >= 0 and s.savable}

    @cached_property
    def saved_by_default(self) -> frozenset[int]:
        """The saved tensors: storages that forward makes and backward needs."""
        read = [*self.backward_ops, *(i for i in self.backward_outputs if self.ops[i].forward)]
        return frozenset(self.needed_storages(read))

    def needed_storages(self, ops: Iterable[int]) -> set[int]:
        """Storages of forward that ``ops`` (of backward) read."""
        found: set[int] = set()
        for i in ops:
            for s in self.ops[i].touches:
                root = self.storages[s].root
                if root >= 0 and self.ops[root].forward and self.storages[s].savable:
                    found.add(s)
        return found

    def closure(self, wanted: Iterable[int], *, stop: object = None) -> set[int]:
        """``wanted`` and all that they depend on, not looking behind operations where ``stop``."""
        cut = stop if callable(stop) else (lambda _: False)
        seen = set(wanted)
        todo = list(seen)
        while todo:
            i = todo.pop()
            if cut(i):
                continue
            for j in self.ops[i].inputs:
                if j not in seen:
                    seen.add(j)
                    todo.append(j)
        return seen
