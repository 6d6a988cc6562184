"""What an operation would cost on a device that is described, not measured: a roofline.

    time = max(FLOP / (peak * efficiency), bytes / (memory rate * efficiency)) + launch

FLOPs are those of ``torch.utils.flop_counter``, with formulas of ours for the attention kernels
that it does not know. Bytes are what the operation reads and writes once. Views cost nothing.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from karma_fx import torch_compat
from karma_fx.profile.devices import DeviceProfile

_FORWARD_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu_backward"


def estimate_us(node: fx.Node, device: DeviceProfile) -> float:
    """The time of ``node`` on ``device``, in microseconds."""
    if node.target is operator.getitem or is_view(node):
        return 0.0
    dtype = _dtype(node)
    matmul_us = 1e6 * flops(node) / (device.peak(dtype) * device.matmul_efficiency)
    memory_us = 1e6 * bytes_moved(node) / (device.memory_rate * device.memory_efficiency)
    return max(matmul_us, memory_us) + device.launch_us


def is_view(node: fx.Node) -> bool:
    """True when every output lies in some input's storage and nothing is written."""
    if getattr(getattr(node.target, "_schema", None), "is_mutable", False):
        return False
    inputs = {_storage(t) for n in node.all_input_nodes for t in _tensors(n)}
    outputs = _tensors(node)
    return bool(outputs) and all(_storage(t) in inputs for t in outputs)


def flops(node: fx.Node) -> float:
    """Floating-point operations of a matrix product, convolution or attention; 0 for the rest."""
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet, "__name__", "")
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n)
    args, kwargs = pytree.tree_map_only(fx.Node, lambda n: n.meta.get("val"), (args, kwargs))
    args, kwargs = pytree.tree_map_only(torch.SymInt, torch_compat.size_hint, (args, kwargs))
    if name == _FORWARD_ATTENTION:
        return float(sdpa_flop_count(*(_shape(t) for t in args[:3])))
    if name == _BACKWARD_ATTENTION:
        return float(sdpa_backward_flop_count(*(_shape(t) for t in args[:4])))
    if packet not in flop_registry:
        return 0.0
    return float(flop_registry[packet](*args, **kwargs, out_val=node.meta.get("val")))


def bytes_moved(node: fx.Node) -> int:
    """Bytes of the tensors that are read and written, each element once."""
    return sum(_bytes(t) for n in (node, *node.all_input_nodes) for t in _tensors(n))


def _bytes(tensor: torch.Tensor) -> int:
    """Elements that differ in memory: an expanded dimension counts once."""
    if tensor.layout is not torch.strided:
        return torch_compat.size_hint(tensor.numel()) * tensor.element_size()
    count = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if torch_compat.size_hint(stride) or torch_compat.size_hint(size) == 0:
            count *= torch_compat.size_hint(size)
    return count


def _dtype(node: fx.Node) -> str:
    for tensor in [*_tensors(node), *(t for n in node.all_input_nodes for t in _tensors(n))]:
        if tensor.dtype.is_floating_point:
            return str(tensor.dtype).removeprefix("torch.")
    return "float32"


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def _shape(tensor: torch.Tensor) -> torch.Size:
    return torch.Size(torch_compat.size_hint(n) for n in tensor.shape)
