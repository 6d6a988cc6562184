"""Plan files: exact round trips, strict reading, and refusal of plans for something else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import karma_fx
from karma_fx.errors import PlanError, PlanMismatchError
from karma_fx.plans import MAX_FILE_BYTES, Action, Plan, load_plan, parse_plan
from tests.harness import assert_same, build, plan_of, train


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return plan_of(tmp_path_factory.mktemp("plan"), *build("mlp"), strategy="offload")


def test_round_trip(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    plan.save(path)
    assert load_plan(path) == plan
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]
    top = json.loads(path.read_text())
    assert {"format", "version", "graph", "device", "budget_bytes", "blocks", "tensors"} <= set(top)
    assert {"step_us", "peak_bytes", "stall_us", "bound_us"} <= set(top["predicted"])
    assert all({"bytes", "action"} <= set(tensor) for tensor in top["tensors"])
    assert plan.bytes_by_action()[Action.OFFLOAD] == sum(
        t["bytes"] for t in top["tensors"] if t["action"] == "offload"
    )


def test_a_failed_save_leaves_the_old_file(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.json"
    path.write_text("old")

    def fail(*_: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no"):
        plan.save(path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("p.json", "old")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.update(format="other"), "not a plan"),
        (lambda b: b.update(version=99), "version 99"),
        (lambda b: b.update(extra=1), "'extra'"),
        (lambda b: b.pop("graph"), '"graph"'),
        (lambda b: b.update(budget_bytes="1"), "budget_bytes"),
        (lambda b: b.update(budget_bytes=True), "budget_bytes"),
        (lambda b: b.update(tensors={}), '"tensors" must be a list'),
        (lambda b: b["tensors"][0].update(action="burn"), "tensors.0..action"),
        (lambda b: b["tensors"].append(3), "must be an object"),
        (lambda b: b["predicted"].update(step_us=None), "predicted.step_us"),
        (lambda b: b["schedule"][0].pop("prefetch"), "schedule.0. lacks"),
    ],
)
def test_malformed(plan: Plan, change: Any, message: str) -> None:
    body = json.loads(plan.to_json())
    change(body)
    with pytest.raises(PlanError, match=message):
        parse_plan(json.dumps(body))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"format": NaN}', "\xff"])
def test_not_json(text: str) -> None:
    with pytest.raises(PlanError):
        parse_plan(text.encode("latin-1"))


def test_unreadable_and_oversized(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="No such file"):
        load_plan(tmp_path / "none.json")
    big = tmp_path / "big.json"
    with open(big, "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(PlanError, match="larger"):
        load_plan(big)


def replay(path: Path, module: nn.Module, inputs: tuple[Any, ...], **options: Any) -> Any:
    return train(module, inputs, "karma", steps=1, plan=path, **options)


def test_a_plan_for_another_graph_is_refused(tmp_path: Path) -> None:
    module, inputs = build("mlp")
    path = tmp_path / "p.json"
    train(module, inputs, "karma", steps=1, memory="1GiB", export=path)
    another_dropout = copy.deepcopy(module)
    next(m for m in another_dropout.modules() if isinstance(m, nn.Dropout)).p = 0.25
    frozen = copy.deepcopy(module)
    next(frozen.parameters()).requires_grad_(False)
    for changed in (copy.deepcopy(module).eval(), another_dropout, frozen):
        with pytest.raises(PlanMismatchError, match="another graph"):
            replay(path, changed, inputs)
    doubles = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    with pytest.raises(PlanMismatchError, match="another graph"):
        replay(path, module.double(), doubles)
    with pytest.raises(PlanMismatchError, match="another graph"):
        replay(path, *_with_batch(7))


def _with_batch(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    module, inputs = build("mlp")
    return module, tuple(x[:batch] for x in inputs)


def test_a_plan_over_the_budget_is_refused(tmp_path: Path) -> None:
    module, inputs = build("mlp")
    path = tmp_path / "p.json"
    train(module, inputs, "karma", steps=1, memory="1GiB", strategy="keep", export=path)
    peak = load_plan(path).predicted.peak_bytes
    with pytest.raises(PlanMismatchError, match="budget"):
        replay(path, module, inputs, memory=peak - 1)
    replay(path, module, inputs, memory=peak)


def edited(path: Path, change: Any) -> None:
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))


def test_an_edited_action_is_honoured(tmp_path: Path) -> None:
    """A person turns one Keep into Recompute: other plan, same numbers."""
    module, inputs = build("mlp")
    path = tmp_path / "p.json"
    expected = train(module, inputs, "karma", memory="1GiB", strategy="keep", export=path)

    def recompute_first(body: dict[str, Any]) -> None:
        body["tensors"][1]["action"] = "recompute"

    edited(path, recompute_first)
    again = tmp_path / "again.json"
    found = train(module, inputs, "karma", memory="1GiB", plan=path, export=again)
    assert_same(expected, found)
    assert load_plan(again).tensors[1].action is Action.RECOMPUTE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b["tensors"][0].update(bytes=1), "lacks"),
        (lambda b: b["tensors"][0].update(made=10**6), "lacks"),
        (lambda b: b["tensors"].append(b["tensors"][0]), "twice"),
    ],
)
def test_an_illegal_plan_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    module, inputs = build("mlp")
    path = tmp_path / "p.json"
    train(module, inputs, "karma", steps=1, memory="1GiB", strategy="offload", export=path)
    edited(path, change)
    with pytest.raises(PlanError, match=message):
        replay(path, module, inputs, memory="1GiB")


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b["tensors"][0].update(action="keep"),
        lambda b: b["schedule"].pop(),
        lambda b: b["schedule"][0].update(prefetch=10**6),
        lambda b: b["schedule"][0].update(prefetch=-1),
        lambda b: b["schedule"][0].update(wait_offload=b["schedule"][0]["offload"] - 1),
    ],
)
def test_a_schedule_that_is_not_legal_is_made_anew(tmp_path: Path, change: Any) -> None:
    module, inputs = build("mlp")
    path = tmp_path / "p.json"
    options = {"memory": "1GiB", "far": "poison"}
    expected = train(module, inputs, "karma", strategy="offload", export=path, **options)
    edited(path, change)
    assert_same(expected, train(module, inputs, "karma", plan=path, **options))


def test_case_15_recompute_from_an_offloaded_tensor(tmp_path: Path) -> None:
    """Layer 1's output goes far, layer 2 is recomputed from it: it is reloaded first."""
    torch.manual_seed(0)
    module = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())))
    inputs = (torch.randn(64, 32),)
    path = tmp_path / "p.json"
    expected = train(module, inputs, "karma", memory="1GiB", strategy="offload", export=path)
    plan = load_plan(path)
    first = plan.tensors[0].name
    assert [t.action for t in plan.tensors].count(Action.OFFLOAD) >= 3

    def recompute_second(body: dict[str, Any]) -> None:
        body["tensors"][1]["action"] = "recompute"

    edited(path, recompute_second)
    again = tmp_path / "again.json"
    found = train(module, inputs, "karma", memory="1GiB", plan=path, far="poison", export=again)
    assert_same(expected, found)
    needed_at = {m.tensor: m.wait_prefetch for m in plan.schedule}[first]
    assert {m.tensor: m.wait_prefetch for m in load_plan(again).schedule}[first] != needed_at


def test_public_names() -> None:
    assert set(karma_fx.__all__) <= set(dir(karma_fx))
