"""annotate: give every operation of the joint graph its record.

Says for each operation which phase it belongs to, which storages it touches and makes, and whether
running it a second time in backward gives the same numbers and no second effect. Storages are told
apart by the identity of the fake tensors' storages, so views, transposes and expanded tensors are
charged for what they hold, once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from karma_fx import torch_compat
from karma_fx.planner.problem import Storage
from karma_fx.record import KEY, NodeRecord, Phase, record_of
from karma_fx.work import Work

_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
_FORWARD_TAGS = ("is_forward", "must_be_in_forward")
_BACKWARD_TAGS = ("is_backward", "must_be_in_backward")


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The (fake) tensors that ``node`` evaluates to, tuples flattened."""
    return [t for t in pytree.tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]


def storage_key(tensor: torch.Tensor) -> tuple[str, int]:
    """What tells the storage of ``tensor`` from others in the same graph."""
    if tensor.layout is torch.strided:
        return ("storage", tensor.untyped_storage()._cdata)
    return ("tensor", id(tensor))


def storage_bytes(tensor: torch.Tensor) -> int:
    """Bytes that the storage of ``tensor`` holds (hints for symbolic sizes)."""
    if tensor.layout is torch.strided:
        return torch_compat.size_hint(tensor.untyped_storage().nbytes())
    return torch_compat.size_hint(tensor.numel()) * tensor.element_size()


def mutated_inputs(graph: fx.Graph) -> set[fx.Node]:
    """Placeholders that the graph writes into (buffers, inputs)."""
    return {
        node.args[0]
        for node in graph.nodes
        if is_mutable(node) and node.args and isinstance(node.args[0], fx.Node)
    }


def is_mutable(node: fx.Node) -> bool:
    """True for operations that write into one of their arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def backward_nodes(work: Work) -> set[fx.Node]:
    """The operations that belong to backward: those that need a tangent, and those that torch
    recorded while it ran backward, unless the forward's outputs need them."""
    found: set[fx.Node] = set()
    for node in work.joint.graph.nodes:
        tag = node.meta.get("partitioner_tag")
        if torch_compat.is_tangent(node) or (node.op != "placeholder" and tag in _BACKWARD_TAGS):
            found.add(node)
        elif tag == "must_be_in_forward" or node.op == "output":
            continue
        elif any(source in found for source in node.all_input_nodes):
            found.add(node)
    todo = [n for n in _outputs(work.joint)[: work.num_fwd_outputs] if isinstance(n, fx.Node)]
    while todo:
        node = todo.pop()
        if node in found:
            found.discard(node)
            todo.extend(node.all_input_nodes)
    return found


def _outputs(module: fx.GraphModule) -> list[Any]:
    """The graph's outputs, flat: fx nodes, None and constants."""
    return list(pytree.arg_tree_leaves(*module.graph.output_node().args))


class _Annotator:
    """One walk over the joint graph; ``storages`` grows as nodes are met."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.storages: list[Storage] = []
        self.ids: dict[tuple[str, int], int] = {}
        self.backward = backward_nodes(work)
        self.count = 0
        outputs, _ = joint_outputs(work)
        self.pinned = {storage_key(t) for n in outputs for t in tensors_of(n)}
        self.frozen: set[int] = set()  # storages of inputs that forward writes into

    def run(self) -> list[Storage]:
        mutated = mutated_inputs(self.work.joint.graph)
        for node in self.work.joint.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._outside(node)
                if node in mutated:
                    self.frozen.update(self.ids_of(node))
            elif node.op == "call_function" and not torch_compat.is_sym_node(node):
                node.meta[KEY] = self._operation(node)
        return self.storages

    def ids_of(self, node: fx.Node) -> tuple[int, ...]:
        found = (self.ids.get(storage_key(t)) for t in tensors_of(node))
        return tuple(dict.fromkeys(i for i in found if i is not None))

    def _new(self, tensor: torch.Tensor, **details: Any) -> int:
        self.storages.append(Storage(nbytes=storage_bytes(tensor), **details))
        self.ids[storage_key(tensor)] = len(self.storages) - 1
        return len(self.storages) - 1

    def _outside(self, node: fx.Node) -> None:
        for tensor in tensors_of(node):
            if storage_key(tensor) not in self.ids:
                tangent = torch_compat.is_tangent(node)
                self._new(tensor, name=node.name, root=-1, tangent=tangent, savable=False)

    def _operation(self, node: fx.Node) -> NodeRecord:
        index, self.count = self.count, self.count + 1
        inputs = [s for source in node.all_input_nodes for s in self.ids_of(source)]
        makes = []
        for tensor in tensors_of(node):
            if storage_key(tensor) not in self.ids:
                makes.append(self._make(node, tensor, index))
        self._claim(node, index)
        touches = tuple(dict.fromkeys([*inputs, *self.ids_of(node)]))
        phase = Phase.BACKWARD if node in self.backward else Phase.FORWARD
        return NodeRecord(
            index,
            phase,
            touches,
            tuple(makes),
            recomputable=phase is Phase.FORWARD and self._recomputable(node, touches),
            seeded=_is_seeded(node),
        )

    def _make(self, node: fx.Node, tensor: torch.Tensor, index: int) -> int:
        return self._new(
            tensor,
            name=node.name,
            root=index,
            pinned=storage_key(tensor) in self.pinned,
            savable=isinstance(node.meta["val"], torch.Tensor),
            movable=type(tensor) is torch_compat.FakeTensor and tensor.layout is torch.strided,
        )

    def _claim(self, node: fx.Node, index: int) -> None:
        """A storage that a tuple made belongs to the first getitem that takes it out."""
        value = node.meta.get("val")
        if node.target is not operator.getitem or not isinstance(value, torch.Tensor):
            return
        s = self.ids[storage_key(value)]
        storage = self.storages[s]
        if storage.root >= 0 and not storage.savable:
            self.storages[s] = replace(storage, root=index, name=node.name, savable=True)

    def _recomputable(self, node: fx.Node, touches: tuple[int, ...]) -> bool:
        if node.target is operator.getitem:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            if source.target is _BATCH_NORM and node.args[1] in (3, 4):
                return False  # the new running statistics: recomputed from already new ones
            record = record_of(source)
            return record is None or record.recomputable
        if not isinstance(node.target, torch._ops.OpOverload):
            return False  # higher-order operations, effects, Python functions
        if is_required(node) or node.target.namespace.endswith("c10d_functional"):
            return False
        if node.meta.get("unbacked_bindings"):
            return False  # a second run would make new sizes
        return self._reads_unchanged(node, touches)

    def _reads_unchanged(self, node: fx.Node, touches: tuple[int, ...]) -> bool:
        """False when the operation reads an input that forward writes into later. In training,
        batch norm's first outputs do not depend on the running statistics that it is given."""
        if not self.frozen.intersection(touches):
            return True
        if node.target is not _BATCH_NORM or node.args[5] is not True:
            return False
        data = {s for arg in node.args[:3] if isinstance(arg, fx.Node) for s in self.ids_of(arg)}
        return not self.frozen.intersection(data)


def _is_seeded(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def is_required(node: fx.Node) -> bool:
    """True for operations that run for their effect."""
    return node.op == "call_function" and bool(node.is_impure(impure_random=False))


def joint_outputs(work: Work) -> tuple[list[fx.Node], list[fx.Node]]:
    """The nodes among the outputs of forward and of backward."""
    outputs = _outputs(work.joint)
    split = work.num_fwd_outputs
    return list(_nodes(outputs[:split])), list(_nodes(outputs[split:]))


def _nodes(values: list[Any]) -> Iterator[fx.Node]:
    return (value for value in values if isinstance(value, fx.Node))


@dataclass(frozen=True)
class Annotate:
    """See the module's docstring."""

    name: str = "annotate"

    def apply(self, work: Work) -> None:
        annotator = _Annotator(work)
        work.storages = annotator.run()
        _, gradients = joint_outputs(work)
        work.gradients = frozenset(s for node in gradients for s in annotator.ids_of(node))
