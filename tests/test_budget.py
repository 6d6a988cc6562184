"""Promise 2: the measured peak is within the budget, the predicted one within 5% of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import karma_fx
from karma_fx.profile.meter import MemoryMeter
from tests.harness import MODELS, build, plan_of, train

POINTS = 7


def smallest_feasible(name: str) -> int:
    with pytest.raises(karma_fx.InfeasibleBudgetError) as caught:
        train(*build(name), "karma", steps=1, memory=1)
    return caught.value.smallest_bytes


def budgets(name: str, tmp_path: Path) -> list[int]:
    """From what keeping everything needs down to the smallest feasible budget."""
    loose = plan_of(tmp_path, *build(name), memory="4GiB", strategy="keep").predicted.peak_bytes
    tight = smallest_feasible(name)
    assert tight < loose
    return [tight + (loose - tight) * i // (POINTS - 1) for i in reversed(range(POINTS))]


@pytest.mark.parametrize("name", MODELS)
def test_peak_within_budget_and_prediction(name: str, tmp_path: Path) -> None:
    predicted_before = None
    for memory in budgets(name, tmp_path):
        path = tmp_path / "plan.json"
        run = train(*build(name), "karma", meter=True, memory=memory, export=path)
        plan = karma_fx.load_plan(path)
        assert run.peak_bytes <= memory
        assert plan.predicted.peak_bytes <= plan.budget_bytes == memory
        assert abs(run.peak_bytes / plan.predicted.peak_bytes - 1) < 0.05
        if predicted_before is not None:
            assert plan.predicted.peak_bytes <= predicted_before
        predicted_before = max(plan.predicted.peak_bytes, predicted_before or 0)


def test_infeasible_names_the_smallest_budget_and_nothing_ran() -> None:
    module, inputs = build("mlp")
    with pytest.raises(karma_fx.InfeasibleBudgetError) as caught:
        torch.compile(module, backend="karma", options={"memory": "1MiB"})(*inputs)
    smallest = caught.value.smallest_bytes
    assert str(smallest) in str(caught.value)
    assert all(p.grad is None for p in module.parameters())

    run = train(module, inputs, "karma", meter=True, memory=smallest)
    assert run.peak_bytes <= smallest
    with pytest.raises(karma_fx.InfeasibleBudgetError):
        train(module, inputs, "karma", steps=1, memory=smallest - 4096)


def test_reserve_is_left_to_others(tmp_path: Path) -> None:
    module, inputs = build("mlp")
    plan = plan_of(tmp_path, module, inputs, memory=64 << 20, reserve="16MiB")
    assert plan.budget_bytes == 48 << 20


def test_meter_is_exact() -> None:
    with MemoryMeter() as meter:
        a = torch.empty(1 << 20, dtype=torch.uint8)
        b = torch.empty(3 << 20, dtype=torch.uint8)
        del a
        c = torch.empty(1 << 19, dtype=torch.uint8)
    assert meter.peak_bytes == 4 << 20
    assert meter.held_bytes == b.nbytes + c.nbytes
