"""Single passes: cuts into blocks, records, and what the verifier refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from karma_fx import models
from karma_fx.errors import VerifyError
from karma_fx.offline import analyze
from karma_fx.options import Options
from karma_fx.passes.partition import Cut, choose_cuts
from karma_fx.pipeline import pipeline, run_passes
from karma_fx.profile.devices import find_device
from karma_fx.profile.estimate import bytes_moved, flops
from karma_fx.record import Phase, record_of
from karma_fx.verify import check_peak, check_recompute, verify
from karma_fx.work import Work

CPU = find_device("cpu")


def gpt_work(**options: Any) -> Work:
    with torch.device("meta"):
        module, inputs = models.gpt(
            layers=4, width=64, heads=2, context=32, batch=4, vocab=64, dropout=0.1
        )
    return analyze(module, inputs, device=CPU, options=Options(**options))


def rewritten(**options: Any) -> Work:
    work = gpt_work(far="poison", **options)
    run_passes(work, pipeline(CPU)[3:])
    return work


def test_cuts_are_narrow_and_no_block_is_tiny() -> None:
    made = [8, 1, 9, 9, 1, 8, 8, 1, 9]
    between = [Cut(nbytes, 2) for nbytes in made]
    assert choose_cuts(between, made, max_blocks=8, wide=1.3) == [1, 4, 7]
    assert choose_cuts(between, [0] * 9, max_blocks=8, wide=1.3) == []
    assert choose_cuts([Cut(5, 1)], [5], max_blocks=8, wide=1.3) == []


def test_a_single_activation_is_a_narrow_cut_however_wide() -> None:
    """As the stages of a ResNet, each narrower than the one before: every residual block counts,
    and its activation function is the end of it."""
    stage = [Cut(12, 2), Cut(14, 2), Cut(12, 2), Cut(4, 1), Cut(4, 1)]
    between = [Cut(cut.nbytes // shrink, cut.tensors) for shrink in (1, 1, 2, 2) for cut in stage]
    loss = Cut(1, 1)
    assert choose_cuts([*between, loss], [4] * 21, max_blocks=4, wide=1.3) == [4, 9, 14, 19]


def test_a_layer_is_a_block() -> None:
    """Cuts lie on the residual stream; blocks bear the names of the modules in them."""
    names = gpt_work().block_names
    for layer in range(4):
        assert any(name.startswith(f"blocks.{layer}") for name in names)
    assert 4 <= len(names) <= 12


def test_records() -> None:
    work = gpt_work()
    phases = [record.phase for _, record in work.operations()]
    assert {Phase.FORWARD, Phase.BACKWARD} == set(phases)
    blocks = [r.block for _, r in work.operations() if r.phase is Phase.FORWARD]
    assert blocks == sorted(blocks)
    back = [r.block for _, r in work.operations() if r.phase is Phase.BACKWARD]
    assert back == sorted(back, reverse=True)
    seeded = [node for node, record in work.operations() if record.seeded]
    assert len(seeded) >= 4  # dropout
    assert all(record.time_us >= 0 for _, record in work.operations())


def test_estimates_are_a_roofline() -> None:
    work = gpt_work()
    for node, record in work.operations():
        if node.target is torch.ops.aten.mm.default:
            a, b = (source.meta["val"] for source in node.args)
            assert flops(node) == 2 * a.shape[0] * a.shape[1] * b.shape[1]
            out = node.meta["val"]
            assert bytes_moved(node) == a.nbytes + b.nbytes + out.nbytes
            assert record.time_us > 1e6 * flops(node) / CPU.flops["float32"]
        if node.target is torch.ops.aten.t.default:
            assert record.time_us == 0


def test_the_rewritten_graphs_pass() -> None:
    work = rewritten(strategy="offload", memory=1 << 30)
    verify(work, after="transfers")


def test_recompute_of_what_may_not_be_is_refused() -> None:
    work = rewritten(strategy="recompute", memory=1 << 30)
    assert work.backward is not None
    again = [n for n in work.backward.graph.nodes if _is_recompute(n)]
    assert len(again) > 20
    record = record_of(again[3])
    assert record is not None
    record.recomputable = False
    with pytest.raises(VerifyError, match="may not be"):
        check_recompute(work.backward.graph)


def test_a_random_operation_without_its_state_is_refused() -> None:
    work = rewritten(strategy="recompute", memory=1 << 30)
    assert work.backward is not None
    plain = next(
        n for n in work.backward.graph.nodes if _is_recompute(n) and not record_of(n).seeded
    )
    record = record_of(plain)
    assert record is not None
    record.seeded = True
    with pytest.raises(VerifyError, match="without its state"):
        check_recompute(work.backward.graph)


def test_a_peak_over_the_budget_is_refused() -> None:
    work = rewritten(strategy="keep", memory=1 << 30)
    assert work.plan is not None
    check_peak(work)
    object.__setattr__(work.plan, "budget_bytes", work.plan.predicted.peak_bytes // 2)
    with pytest.raises(VerifyError, match="over the budget"):
        check_peak(work)


def test_a_wrong_prediction_is_refused() -> None:
    work = rewritten(strategy="keep", memory=1 << 30)
    assert work.plan is not None
    object.__setattr__(work.plan.predicted, "peak_bytes", work.plan.predicted.peak_bytes * 2)
    with pytest.raises(VerifyError, match="predicted"):
        check_peak(work)


def _is_recompute(node: fx.Node) -> bool:
    record = record_of(node) if node.op == "call_function" else None
    return record is not None and record.phase is Phase.FORWARD
