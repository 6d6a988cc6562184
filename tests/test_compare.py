"""Comparing strategies: what the command prints, what runs, and what a batch size needs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
import sympy
import torch

from karma_fx import models
from karma_fx.batch import BATCH, largest_batch, near_memory, upper_hull
from karma_fx.errors import UnsupportedError
from karma_fx.execute import execute, loss_of
from karma_fx.offline import analyze
from karma_fx.planner.links import Links
from karma_fx.planner.problem import Problem
from karma_fx.planner.sequence import make_sequence
from karma_fx.planner.simulate import Move, simulate
from karma_fx.profile.devices import find_device, load_device
from karma_fx.strategies.decision import legal_saved
from karma_fx.strategies.keep import keep
from karma_fx.tools import cli

TINY = ["karma_fx.models:mlp", "--set", "batch=256"]


def capture(batch: int) -> Problem:
    with torch.device("meta"):
        module, inputs = models.gpt(layers=2, width=64, heads=2, context=32, batch=batch)
    problem = analyze(module, inputs, device=find_device("cpu")).problem
    assert problem is not None
    return problem


def test_largest_batch_is_exact() -> None:
    """One more than the answer does not fit; the answer does, and the expression is its peak."""
    links = find_device("cpu").links()
    near = near_memory(capture, links)
    budget = 24 << 20
    batch = largest_batch(near.keep, budget)
    assert batch > 16
    fits, over = (keep(capture(n), links, budget).placement for n in (batch, batch + 1))
    assert fits.fits(budget) and not over.fits(budget)
    assert fits.peak_bytes == near.keep.subs(BATCH, batch)
    assert largest_batch(near.least, budget) > batch
    assert largest_batch(near.keep, 1024) == 0


def test_largest_batch_needs_a_batch() -> None:
    with pytest.raises(UnsupportedError, match="does not depend"):
        largest_batch(sympy.Integer(5), 10)
    assert largest_batch(sympy.Max(3 * BATCH + 1, 100 + BATCH), 103) == 3
    assert largest_batch(sympy.Max(3 * BATCH + 1, sympy.Integer(200)), 103) == 0


def test_upper_hull() -> None:
    assert upper_hull({(0, 3), (5, 1), (4, 1), (6, 0), (1, 2)}) == [(6, 0), (5, 1), (0, 3)]
    assert upper_hull({(9, 3), (5, 1)}) == [(9, 3)]


def test_strategies_run_in_turns(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", *TINY, "--memory", "10MiB", "--far", "ram", "--run", "--rounds", "2"]
    assert cli.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ran = [row for row in found["strategies"] if "measured_step_us" in row]
    assert {row["name"] for row in ran} == {r["name"] for r in found["strategies"] if r["feasible"]}
    assert any(row["name"] == "karma" for row in ran)
    for row in ran:
        assert row["measured_step_us"] > 0
        assert row["measured_peak_bytes"] <= found["budget_bytes"]
        assert row["measured_peak_bytes"] == pytest.approx(row["peak_bytes"], rel=0.05)


def test_executing_tells_of_every_step_and_drops_gradients() -> None:
    module, inputs = models.mlp(batch=64)
    told: list[None] = []
    options = {"a": {"memory": "1GiB"}, "b": {"memory": "1GiB", "strategy": "recompute"}}
    found = execute(module, inputs, options, rounds=2, on_step=lambda: told.append(None))
    assert len(told) == 2 * 3
    assert set(found) == {"a", "b"}
    assert all(p.grad is None for p in module.parameters())


def test_the_loss_is_the_first_tensor_that_trains() -> None:
    x = torch.ones(3, requires_grad=True)
    assert loss_of({"no": torch.ones(2), "yes": x * 2}).item() == 6
    with pytest.raises(UnsupportedError, match="does not train"):
        loss_of((torch.ones(2), "text"))


def test_sweep_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.svg"
    assert cli.main(["compare", *TINY, "--sweep", "4", "--svg", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 4
    root = ElementTree.parse(path).getroot()
    names = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"karma", "lower bound", "budget (GiB)"} <= set(names)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) >= 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "--sweep", "3"], "can't be had together"),
        (["--svg", "x.svg"], "--sweep N too"),
        (["--sweep", "2", "--svg", "/nowhere/x.svg"], "can't write"),
    ],
)
def test_bad_combinations(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", *TINY, *arguments]) == 1
    assert message in capsys.readouterr().err


def test_largest_batch_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "karma_fx.models:mlp", "--memory", "64MiB", "--largest-batch", "--json"]
    assert cli.main(arguments) == 0
    keep, least = json.loads(capsys.readouterr().out)
    assert sympy.sympify(keep["near_bytes"]).free_symbols == {sympy.Symbol("batch")}
    assert 0 < keep["largest_batch"] < least["largest_batch"]


def test_profile_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "machine.json"
    assert cli.main(["profile", "--far", "ram", "-o", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(path.read_text())
    device = load_device(path)
    assert device.flops["float32"] > 1e9
    assert device.memory_rate > 1e8 and device.out_rate > 1e7 and device.in_rate > 1e7
    assert cli.main(["profile", "-o", "machine.txt"]) == 1
    assert "ends in .json" in capsys.readouterr().err


def test_a_thousand_simulations_a_second() -> None:
    """Of a model of 50 blocks, all of them offloaded; a third of that rate is asked for here, since
    machines that run tests are busy."""
    blocks = 50
    moves = [
        Move(b, b + 1, b + 2, blocks - 2 - b if b < 49 else 0, blocks - 1 - b) for b in range(49)
    ]
    sizes = {b: 1 << 20 for b in range(49)}
    links = Links(1000.0, 1000.0, 10.0, 0.1)
    start = time.perf_counter()
    for _ in range(300):
        timing = simulate([100.0] * blocks, [200.0] * blocks, moves, sizes, links)
    assert time.perf_counter() - start < 0.9
    assert timing.compute_us == pytest.approx(15_000)
    assert timing.stall_us > 0


def test_a_tuple_is_taken_apart_where_it_is_made_again() -> None:
    """Else it would hold on to all of its outputs until the last of them is needed."""
    module, inputs = models.convnet(batch=2)
    problem = analyze(module, inputs, device=find_device("cpu")).problem
    assert problem is not None
    everything = frozenset(
        s for s in problem.saved_by_default if problem.ops[problem.storages[s].root].heavy
    )
    order = make_sequence(problem, legal_saved(problem, everything)).backward
    at = {j: position for position, j in enumerate(order)}
    checked = 0
    for j in order:
        op = problem.ops[j]
        if op.forward and op.unpacks and op.inputs[0] in at:
            between = order[at[op.inputs[0]] + 1 : at[j]]
            assert all(problem.ops[i].inputs == op.inputs for i in between)
            checked += 1
    assert checked > 3
