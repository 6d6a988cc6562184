"""Plans from fake tensors: the same graph, nothing allocated, described devices, commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import karma_fx
from karma_fx import models
from karma_fx.compare import compare
from karma_fx.errors import InfeasibleBudgetError, OptionError, UnsupportedError
from karma_fx.offline import analyze
from karma_fx.profile.devices import PRESETS, find_device
from karma_fx.strategies.registry import STRATEGIES
from karma_fx.tools import cli
from karma_fx.units import GIB, MIB
from tests.harness import assert_same, build, train

SMALL = {"layers": 2, "width": 64, "heads": 2, "context": 32, "batch": 4, "vocab": 64}
SET = [word for k, v in SMALL.items() for word in ("--set", f"{k}={v}")]


def test_an_offline_plan_is_replayed(tmp_path: Path) -> None:
    """Planned from meta tensors, run on real ones."""
    with torch.device("meta"):
        module, inputs = models.gpt(**SMALL)
    loose = karma_fx.plan(module, inputs, memory="1GiB")
    plan = karma_fx.plan(module, inputs, memory=loose.predicted.peak_bytes * 8 // 10)
    assert plan.predicted.peak_bytes <= plan.budget_bytes < loose.predicted.peak_bytes
    assert plan.predicted.bound_us is not None
    assert plan.predicted.step_us >= plan.predicted.bound_us * (1 - 1e-6)
    path = tmp_path / "p.json"
    plan.save(path)
    torch.manual_seed(0)
    real = models.gpt(**SMALL)
    found = train(*real, "karma", plan=path, far="poison")
    assert_same(train(*real, "aot_eager"), found)


def test_real_modules_are_left_alone() -> None:
    module, inputs = build("mlp")
    before = [p.detach().clone() for p in module.parameters()]
    state = torch.get_rng_state()
    karma_fx.plan(module, inputs, memory="1GiB", device="h100-80gb")
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert all(type(p) is nn.Parameter and p.grad is None for p in module.parameters())


def test_a_large_model_is_planned_without_memory() -> None:
    """2.6 GB of weights, 30 GB of activations."""
    with torch.device("meta"):
        module, inputs = models.gpt(layers=4, width=3584, heads=28, context=1024, batch=16)
    plan = karma_fx.plan(module, inputs, memory="14GiB", device="v100-16gb")
    assert sum(p.numel() for p in module.parameters()) > 600e6
    assert plan.predicted.peak_bytes <= 14 * GIB < sum(t.bytes for t in plan.tensors)
    assert plan.predicted.step_us < 1.1 * (plan.predicted.bound_us or 0)


def test_infeasible_names_the_smallest() -> None:
    with torch.device("meta"):
        module, inputs = models.gpt(**SMALL)
    with pytest.raises(InfeasibleBudgetError) as caught:
        karma_fx.plan(module, inputs, memory="1KiB")
    assert "more than the budget: a plan moves activations, never those" in str(caught.value)
    karma_fx.plan(module, inputs, memory=caught.value.smallest_bytes)


def test_what_is_not_one_graph_is_refused() -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        print("graph break")
        return x.sum()

    with pytest.raises(UnsupportedError, match="one training graph"):
        karma_fx.plan(breaks, [torch.ones(2, requires_grad=True)], memory="1GiB")
    with pytest.raises(UnsupportedError, match="does not train"):
        karma_fx.plan(lambda x: x.sum(), [torch.ones(2)], memory="1GiB")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_sources_and_sensible_rates(name: str) -> None:
    device = find_device(name)
    assert device.sources and device.memory_bytes > GIB
    assert device.memory_rate > device.out_rate
    assert device.peak("float32") >= device.peak("float64") > 0


def test_a_device_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(PRESETS["a100-40gb"].to_json())
    assert find_device(str(path)) == PRESETS["a100-40gb"]
    body = json.loads(path.read_text())
    for change, message in (
        ({"speed": 3}, "unknown fields"),
        ({"memory_rate": -1}, "memory_rate"),
        ({"flops": {"int8": 1.0}}, "float32"),
        ({"name": 7}, "name"),
    ):
        path.write_text(json.dumps({**body, **change}))
        with pytest.raises(OptionError, match=message):
            find_device(str(path))
    path.write_text("{")
    with pytest.raises(OptionError, match=r"mine\.json"):
        find_device(str(path))
    with pytest.raises(OptionError, match="v100-16gb"):
        find_device("abacus")


def test_tensor_cores_change_the_plan() -> None:
    """Slow fp32 compute hides swaps; with fast bf16 compute the interiors are recomputed."""
    plans = {}
    for dtype, device in ((torch.float32, "v100-16gb"), (torch.bfloat16, "h100-80gb")):
        with torch.device("meta"):
            module, inputs = models.gpt(
                layers=6, width=1024, heads=16, context=1024, batch=16, dtype=dtype
            )
        loose = karma_fx.plan(module, inputs, memory="80GiB", device=device)
        budget = loose.predicted.peak_bytes // 2
        plans[device] = karma_fx.plan(module, inputs, memory=budget, device=device)
    by_action = {name: plan.bytes_by_action() for name, plan in plans.items()}
    action = karma_fx.Action
    swaps, mixes = by_action["v100-16gb"], by_action["h100-80gb"]
    assert swaps[action.OFFLOAD] > swaps[action.RECOMPUTE]
    assert mixes[action.RECOMPUTE] > mixes[action.OFFLOAD] > 0


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s not in ("karma", "keep")])
@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_every_baseline_runs_and_gives_the_same_numbers(name: str, strategy: str) -> None:
    module, inputs = build(name)
    options = {"memory": "1GiB", "strategy": strategy, "far": "poison"}
    found = train(module, inputs, "karma", steps=2, **options)
    assert_same(train(module, inputs, "aot_eager", steps=2), found)


def test_karma_is_never_slower_than_what_it_is_compared_with() -> None:
    with torch.device("meta"):
        module, inputs = models.gpt(layers=4, width=512, heads=8, context=512, batch=16)
    work = analyze(module, inputs, device=find_device("h100-80gb"))
    assert work.problem is not None and work.links is not None
    unlimited = compare(work.problem, work.links, 80 * GIB, ["keep"]).unlimited_bytes
    for share in (0.9, 0.6, 0.4):
        found = compare(work.problem, work.links, int(unlimited * share))
        karma = found.row("karma")
        feasible = [row for row in found.rows if row.feasible]
        assert karma.feasible and len(feasible) >= 3
        assert all(karma.step_us <= row.step_us * 1.0001 for row in feasible)
        assert all(row.step_us >= (found.bound_us or 0) * (1 - 1e-6) for row in feasible)
        assert all(row.peak_bytes <= found.budget_bytes for row in feasible)


def test_plan_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.json"
    arguments = ["plan", "karma_fx.models:gpt", *SET, "--memory", "64MiB", "-o", str(path)]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "lower bound" in shown and "recompute" in shown
    assert karma_fx.load_plan(path).budget_bytes == 64 * MIB
    assert cli.main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "karma-plan"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "nowhere:gpt", "--memory", "1GiB"], "can't be found"),
        (["plan", "karma_fx.models:gpt", "--set", "batch", "--memory", "1GiB"], "NAME=VALUE"),
        (["plan", "karma_fx.models:gpt", "--set", "wings=2", "--memory", "1GiB"], "wings"),
        (["plan", "os:getcwd", "--memory", "1GiB"], "must return"),
        (["plan", "karma_fx.models:gpt"], "--memory"),
        (["plan", "karma_fx.models:gpt", *SET, "--memory", "1KiB"], "smallest budget"),
        (["compare", "karma_fx.models:gpt", "--device", "abacus"], "abacus"),
    ],
)
def test_commands_name_what_is_wrong(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 1
    assert message in capsys.readouterr().err


def test_compare_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "karma_fx.models:gpt", *SET, "--memory", "1200KiB"]
    assert cli.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = {"name", "feasible", "step_us", "peak_bytes", "stall_us", "recompute_us", "moved_bytes"}
    assert [set(row) for row in found["strategies"]] == [names] * len(STRATEGIES)
    assert cli.main(arguments) == 0
    assert "does not fit" in capsys.readouterr().out
    assert cli.main([*arguments, "--sweep", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and "karma20" in lines[0]
    assert max(map(len, lines)) <= 150
