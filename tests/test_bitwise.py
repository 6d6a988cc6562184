"""Promise 1: for every plan, numbers equal those of the unscheduled graph, bit for bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from torch import nn

import karma_fx
from tests.harness import MODELS, STRATEGIES, Run, assert_same, build, train


@cache
def reference(name: str) -> Run:
    return train(*build(name), "aot_eager")


def tight_budget(name: str) -> int:
    """The smallest feasible budget, as the error names it."""
    with pytest.raises(karma_fx.InfeasibleBudgetError) as caught:
        train(*build(name), "karma", steps=1, memory=1)
    return caught.value.smallest_bytes


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", MODELS)
def test_strategies_on_disk(name: str, strategy: str) -> None:
    found = train(*build(name), "karma", memory="4GiB", strategy=strategy, far="disk")
    assert_same(reference(name), found)


@pytest.mark.parametrize("strategy", ["offload", "karma"])
@pytest.mark.parametrize("name", MODELS)
def test_poisoned(name: str, strategy: str) -> None:
    """NaN wherever a wait is missing; the tightest budget there is for karma."""
    memory = tight_budget(name) if strategy == "karma" else "4GiB"
    found = train(*build(name), "karma", memory=memory, strategy=strategy, far="poison")
    assert_same(reference(name), found)


@pytest.mark.parametrize("name", MODELS)
def test_replayed_plan(name: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    memory = tight_budget(name)
    first = train(*build(name), "karma", memory=memory, export=path)
    again = train(*build(name), "karma", memory=memory, plan=path, far="poison")
    assert_same(reference(name), first)
    assert_same(first, again)


def test_parameters_are_unedited() -> None:
    """The module that was compiled is the module that is trained; nothing is replaced."""
    module, inputs = build("mlp")
    types = [type(m) for m in module.modules()]
    train(module, inputs, "karma", strategy="offload", memory="4GiB")
    assert [type(m) for m in module.modules()] == types
    assert all(isinstance(p, nn.Parameter) for p in module.parameters())
