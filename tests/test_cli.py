"""The command ``karma``, and the pieces of its demo, on runs of a second or two."""

from __future__ import annotations

import io
import json
import shlex
from dataclasses import replace
from importlib.metadata import entry_points, version

import pytest
import torch

from karma_fx.tools import cli, demo, demo_worker
from karma_fx.tools.command import Command
from karma_fx.tools.demo_runs import OUT_OF_MEMORY, Job, Run, Step, cause_of_death, run_job
from karma_fx.tools.progress import Progress
from karma_fx.units import MIB

TINY = Job(
    mode="reference",
    layers=1,
    width=32,
    heads=1,
    context=16,
    batch=2,
    steps=2,
    memory_bytes=64 * MIB,
    far="disk",
    limit_bytes=None,
)
LOSSES = (5.5, 5.25)


def step(loss: float) -> Step:
    return Step(loss.hex(), 1.0, 300 * MIB)


def done(mode: str, losses: tuple[float, ...] = LOSSES, death: str | None = None) -> Run:
    return Run(replace(TINY, mode=mode), [step(x) for x in losses], 300 * MIB, death)


def runs(**changed: Run) -> dict[str, Run]:
    """What a demo that goes well comes to, but for ``changed``."""
    eager = done("eager", (), OUT_OF_MEMORY)
    return {"eager": eager, "karma": done("karma"), "reference": done("reference"), **changed}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"karma-fx {version('karma-fx')}\n"


def test_console_script_and_backend_are_registered() -> None:
    (script,) = entry_points(group="console_scripts", name="karma")
    assert script.load() is cli.main
    (backend,) = entry_points(group="torch_dynamo_backends", name="karma")
    assert backend.value == "karma_fx.backend:karma"


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_help_has_an_example_that_parses(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main([command.name, "--help"])
    shown = capsys.readouterr().out
    assert command.example in shown
    assert "--json" in shown
    program, *arguments = shlex.split(command.example)
    assert program == "karma"
    assert cli.make_parser().parse_args(arguments).handler is command.run


@pytest.mark.parametrize(
    "arguments",
    [[], ["train"], ["demo", "--batch", "0"], ["demo", "--limit", "2 apples"]],
    ids=["no command", "unknown command", "no batch", "no size"],
)
def test_bad_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    assert "usage: karma" in capsys.readouterr().err


def test_demo_refuses_a_width_that_its_heads_do_not_divide(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["demo", "--width", "100"]) == 2
    assert "multiple of 64" in capsys.readouterr().err


def test_worker_trains_and_reports_every_step() -> None:
    heard: list[Step] = []
    run = run_job(TINY, on_step=heard.append, tick=lambda: None)
    assert run.death is None, run.stderr
    assert run.steps == heard
    assert len(heard) == TINY.steps
    assert run.peak_rss_bytes > 100 * MIB
    assert run.step_s == heard[1].step_s
    assert run.per_step("offloaded_bytes") is None


def test_worker_dies_at_its_limit_and_the_parent_knows_why() -> None:
    job = replace(TINY, mode="eager", width=1024, layers=16, limit_bytes=400 * MIB)
    run = run_job(job, on_step=lambda step: None, tick=lambda: None)
    assert run.death == OUT_OF_MEMORY, run.stderr
    assert run.steps == []
    assert run.peak_rss_bytes > 100 * MIB
    assert demo.outcome(run) == "died at step 0: out of memory"


@pytest.mark.parametrize(
    ("status", "stderr", "cause"),
    [
        (1, "RuntimeError: ... DefaultCPUAllocator: can't allocate memory: you", OUT_OF_MEMORY),
        (1, "Traceback ...\nMemoryError\n", OUT_OF_MEMORY),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", OUT_OF_MEMORY),
        (-9, "", "out of memory (killed)"),
        (1, "Traceback ...\nValueError: no\n", "ValueError: no"),
        (-11, "", "exit status -11"),
    ],
)
def test_cause_of_death(status: int, stderr: str, cause: str) -> None:
    assert cause_of_death(status, stderr) == cause


def test_batches_are_text_and_the_same_in_every_run() -> None:
    first, again = (next(demo_worker.batches(TINY)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    tokens, targets = first
    assert tokens.shape == targets.shape == (TINY.batch, TINY.context)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert bytes(demo_worker.text_bytes().tolist()).decode().count("import") > 100


def test_demo_is_content_with_equal_losses() -> None:
    assert demo.failure(runs()) is None


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"karma": done("karma", (5.5, 5.25 + 2**-50))}, "the losses differ at step 1: "),
        ({"karma": done("karma", (5.5,), "ValueError: no")}, "karma died at step 1: ValueError"),
        ({"reference": done("reference", (), OUT_OF_MEMORY)}, "no limit died at step 0: out of"),
        ({"eager": done("eager")}, "plain eager fits under this limit"),
        ({"eager": done("eager", (), "ValueError: no")}, "plain eager died at step 0: ValueErr"),
    ],
    ids=["losses differ", "karma dies", "reference dies", "eager fits", "eager fails"],
)
def test_demo_says_what_it_fails_to_show(changed: dict[str, Run], sentence: str) -> None:
    failed = demo.failure(runs(**changed))
    assert failed is not None
    assert failed.startswith(sentence)


def test_demo_table_shows_each_run_in_a_column() -> None:
    shown = demo.table(list(runs().values()))
    assert all(title in shown for title in demo.TITLES.values())
    assert "died at step 0: out of memory" in shown
    assert shown.count("5.250000") == 2
    assert max(map(len, shown.splitlines())) <= 120


def test_demo_json_holds_every_loss() -> None:
    report = json.loads(demo.as_json(runs(), None))
    assert [run["losses"] for run in report["runs"]] == [[], [5.5, 5.25], [5.5, 5.25]]
    assert report["failure"] is None


def test_counters_are_per_step_and_leave_out_the_first() -> None:
    steps = [replace(step(5.0), offloaded_bytes=n) for n in (100, 130, 160)]
    assert Run(TINY, steps).per_step("offloaded_bytes") == 30


def test_progress_writes_one_line_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    progress = Progress("karma", total=2, stream=stream)
    progress.advance("loss 5.5")
    progress.draw()
    progress.close("trained 1 step")
    assert stream.getvalue() == f"karma [{'#' * 14}{'-' * 14}] 1/2, 0 s, trained 1 step\n"


def test_progress_redraws_itself_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress("karma", total=1, stream=stream)
    progress.advance("loss 5.5")
    progress.close("trained")
    first, second = (part for part in stream.getvalue().split("\r\x1b[K") if part)
    assert first.endswith("1/1, 0 s, loss 5.5")
    assert second.endswith("1/1, 0 s, trained\n")
