"""Options: what is valid, what is refused and how, and the environment."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from karma_fx.errors import OptionError
from karma_fx.options import Options, parse_options
from karma_fx.units import format_bytes, format_us, parse_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("6GiB", 6 << 30),
        ("512 MiB", 512 << 20),
        ("1.5kB", 1500),
        ("1024", 1024),
        ("2tb", 2 * 10**12),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes
    assert parse_options({"memory": text}).memory == nbytes


def test_sizes_as_text() -> None:
    assert format_bytes(3 << 29) == "1.50 GiB"
    assert format_bytes(100) == "100 B"
    assert format_us(1500.0) == "1.50 ms"
    assert format_us(2.5e6) == "2.50 s"


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ({}, Options()),
        ({"memory": None}, Options()),
        ({"memory": 0.5}, Options(memory=0.5)),
        ({"memory": "0.5"}, Options(memory=0.5)),
        ({"memory": 1e9}, Options(memory=10**9)),
        ({"far": "disk:/var/tmp"}, Options(far="disk:/var/tmp")),
        ({"reserve": "1KiB"}, Options(reserve=1024)),
        ({"strategy": "keep", "plan": "a.json"}, Options(strategy="keep", plan="a.json")),
    ],
)
def test_valid(given: dict[str, Any], parsed: Options) -> None:
    assert parse_options(given) == parsed


@pytest.mark.parametrize(
    ("name", "value", "names"),
    [
        ("memory", "six", "6GiB"),
        ("memory", 0, "fraction"),
        ("memory", -1, "bytes"),
        ("memory", True, "bytes"),
        ("memory", 1.5, "fraction"),
        ("memory", float("nan"), "fraction"),
        ("memory", float("inf"), "fraction"),
        ("far", "floppy", "disk:DIR"),
        ("far", 3, "disk"),
        ("strategy", "best", "recompute"),
        ("inner", "tvm", "eager"),
        ("profile", "no", "measure"),
        ("reserve", -1, "512MiB"),
        ("plan", "", "plan file"),
        ("debug", "loud", "print"),
    ],
)
def test_refused_values_name_the_valid_ones(name: str, value: Any, names: str) -> None:
    with pytest.raises(OptionError, match=name) as caught:
        parse_options({name: value})
    assert names in str(caught.value)


def test_unknown_option_names_all() -> None:
    with pytest.raises(OptionError) as caught:
        parse_options({"memmory": "1GiB"})
    assert "'memmory'" in str(caught.value)
    for name in ("memory", "far", "strategy", "plan", "export", "reserve"):
        assert f"  {name}: " in str(caught.value)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KARMA_MEMORY", "6GiB")
    monkeypatch.setenv("KARMA_STRATEGY", "offload")
    assert parse_options() == Options(memory=6 << 30, strategy="offload")
    assert parse_options({"strategy": "keep"}).strategy == "keep"
    monkeypatch.setenv("KARMA_FAR", "nowhere")
    with pytest.raises(OptionError, match="nowhere"):
        parse_options()


def test_errors_reach_the_user_under_their_own_name() -> None:
    linear = torch.nn.Linear(2, 2)
    compiled = torch.compile(linear, backend="karma", options={"memory": "lots"})
    with pytest.raises(OptionError, match="lots"):
        compiled(torch.ones(1, 2))
    with pytest.raises(OptionError, match="mode"):
        torch.compile(linear, backend="karma", mode="reduce-overhead")(torch.ones(1, 2))
