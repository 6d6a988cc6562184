"""Faults that other tools had, as small inputs with their right outcome.

Each runs with everything offloaded (under poison), with everything recomputed, and kept; outputs,
gradients (which are None included) and buffers must match an uncompiled copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import karma_fx
from karma_fx.runtime.parcel import live_parcels

MODES: dict[str, dict[str, Any]] = {
    "keep": {"strategy": "keep"},
    "offload": {"strategy": "offload", "far": "poison"},
    "recompute": {"strategy": "recompute"},
}
every_mode = pytest.mark.parametrize("mode", MODES)


def compile_with(function: Any, mode: str, *, fullgraph: bool = True) -> Any:
    options = {"memory": "1GiB", **MODES[mode]}
    return torch.compile(function, backend="karma", fullgraph=fullgraph, options=options)


def check_function(function: Callable[..., Any], inputs: list[Tensor], mode: str) -> None:
    """Outputs and input gradients of ``function`` equal eager's."""
    expected_inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    found_inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    torch.manual_seed(5)
    expected = function(*expected_inputs)
    torch.manual_seed(5)
    found = compile_with(function, mode)(*found_inputs)
    sum(out.sum() for out in _tuple(expected)).backward()
    sum(out.sum() for out in _tuple(found)).backward()
    for a, b in zip(_tuple(expected), _tuple(found), strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride()
        torch.testing.assert_close(a, b)
    for a, b in zip(expected_inputs, found_inputs, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


@every_mode
def test_1_dropout_is_replayed(mode: str) -> None:
    w = torch.ones(64, 64, requires_grad=True)

    def f(w: Tensor) -> tuple[Tensor, Tensor]:
        d = F.dropout(w, 0.5)
        return (d * w).sum(), d

    loss, d = compile_with(f, mode)(w)
    loss.backward()
    assert torch.equal(w.grad, 4 * (d != 0))
    assert 0 < (d != 0).sum() < d.numel()


class TwoNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1, self.norm1 = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.linear2, self.norm2 = nn.Linear(16, 4), nn.BatchNorm1d(4, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.linear1(x)).relu()
        return self.norm2(self.linear2(x)).square().mean()


@every_mode
def test_2_batch_norm_updates_once(mode: str) -> None:
    module = TwoNorms()
    graphs = karma_fx.stats().graphs
    plain = copy.deepcopy(module)
    compiled = compile_with(module, mode, fullgraph=False)  # momentum=None breaks the graph
    for step in range(3):
        x = torch.randn(32, 8)
        for m, call in ((plain, plain), (module, compiled)):
            m.zero_grad()
            call(x).backward()
        assert int(module.norm1.num_batches_tracked) == step + 1
        assert int(module.norm2.num_batches_tracked) == step + 1
        for (name, a), (_, b) in zip(plain.named_buffers(), module.named_buffers(), strict=True):
            torch.testing.assert_close(a, b, msg=name)
        for a, b in zip(plain.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    assert karma_fx.stats().graphs - graphs >= 2


@every_mode
def test_4_read_before_a_later_mutation(mode: str) -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.rand(16))
            self.register_buffer("buf", torch.rand(16))

        def forward(self, x: Tensor) -> Tensor:
            y = torch.sin(self.buf + self.w * x) + torch.exp(self.buf.view(4, 4).flatten() - self.w)
            self.buf.add_(1)
            return y.sum()

    module = Reads()
    plain = copy.deepcopy(module)
    compiled = compile_with(module, mode)
    for _ in range(2):
        x = torch.rand(16)
        plain.zero_grad(), module.zero_grad()
        plain(x).backward(), compiled(x).backward()
        torch.testing.assert_close(plain.w.grad, module.w.grad)
        torch.testing.assert_close(plain.buf, module.buf)


@every_mode
def test_5_aliases(mode: str) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.exp()
        z = y.t()
        return (y.sin() * z.cos()).sum() + y[1:].sum() + torch.tanh(y @ z).sum()

    check_function(f, [torch.randn(6, 6, requires_grad=True)], mode)


@every_mode
@pytest.mark.parametrize("shape", ["view", "expand"])
def test_6_views_and_expanded(mode: str, shape: str) -> None:
    def view(x: Tensor, w: Tensor) -> Tensor:
        return (torch.exp(x).view(10, 100) * w).sum()

    def expand(x: Tensor, w: Tensor) -> Tensor:
        return (torch.exp(x).expand(4, 1000) * w).sum()

    x = torch.randn(1, 1000, requires_grad=True)
    w = torch.randn((10, 100) if shape == "view" else (4, 1000), requires_grad=True)
    check_function(view if shape == "view" else expand, [x, w], mode)


@every_mode
def test_7_layouts(mode: str) -> None:
    conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    plain = copy.deepcopy(conv)

    def f(m: nn.Module, x: Tensor) -> Tensor:
        y = m(x)
        y = y * y.sigmoid()
        a = y.exp()[1:].transpose(2, 3)
        return (a.sin() * a.cos()).contiguous().tanh().sum() + y.square().sum()

    x = torch.randn(3, 3, 8, 8).to(memory_format=torch.channels_last)
    f(plain, x).backward()
    compile_with(f, mode)(conv, x).backward()
    for a, b in zip(plain.parameters(), conv.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


class SavesOddThings(torch.autograd.Function):
    """Saves its output, a mask, None and an empty tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y, x > 0, None, x.new_empty(0))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        y, mask, nothing, empty = ctx.saved_tensors
        assert nothing is None
        return grad * y * mask + empty.sum()


def _pool(x: Tensor) -> Tensor:
    y, indices = F.max_pool2d(x.exp(), 2, return_indices=True)
    return F.max_unpool2d(y.sin(), indices, 2).square()


def _sort(x: Tensor) -> Tensor:
    values, order = x.flatten().sort()
    return values * torch.arange(values.numel()).sqrt() + order.to(x.dtype)


def _where(x: Tensor) -> Tensor:
    return torch.where(x.sin() > 0, x.exp(), x.square())


@every_mode
@pytest.mark.parametrize("function", [_pool, _sort, _where, SavesOddThings.apply])
def test_8_odd_saved_values(function: Any, mode: str) -> None:
    check_function(lambda x: function(x), [torch.randn(2, 3, 8, 8, requires_grad=True)], mode)


@every_mode
def test_11_used_twice(mode: str) -> None:
    """A GAN's discriminator: two forwards are alive at once, each with its own far memory."""
    g = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))
    d = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    g0, d0 = copy.deepcopy(g), copy.deepcopy(d)
    gc, dc = compile_with(g, mode), compile_with(d, mode)
    noise = torch.randn(16, 4)
    for generator, discriminator, modules in ((g0, d0, (g0, d0)), (gc, dc, (g, d))):
        for m in modules:
            m.zero_grad()
        fake = generator(noise)
        discriminator(fake.detach()).mean().backward()
        discriminator(fake).square().mean().backward()
        first, second = discriminator(fake.detach() + 1), discriminator(fake.detach() + 2)
        second.sum().backward()
        first.sum().backward()
    plain, found = [*g0.parameters(), *d0.parameters()], [*g.parameters(), *d.parameters()]
    for a, b in zip(plain, found, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert live_parcels() == 0


@every_mode
def test_12_inference_and_training_mixed(mode: str) -> None:
    m = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
    plain = copy.deepcopy(m)
    compiled = compile_with(m, mode)
    x = torch.randn(16, 8)
    karma_fx.reset_stats()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), plain(x))
    assert karma_fx.stats().offloaded_bytes == 0
    compiled(x).sum().backward()
    moved = karma_fx.stats().offloaded_bytes
    assert (moved > 0) == (mode == "offload")
    with torch.no_grad():
        compiled(x)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), plain(x))
    assert karma_fx.stats().offloaded_bytes == moved
    compiled(x).sum().backward()
    plain(x).sum().backward()
    plain(x).sum().backward()
    for a, b in zip(plain.parameters(), m.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
