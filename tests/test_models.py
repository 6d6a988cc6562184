"""The zoo: every model is one graph, trains, and comes out the same from the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import karma_fx.models as zoo

Builder = Callable[..., tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]

SMALL: dict[str, dict[str, Any]] = {
    "convnet": {"width": 4, "blocks": 1, "image": 8},
    "gpt": {"layers": 2, "width": 32, "heads": 2, "context": 16, "vocab": 32, "dropout": 0.1},
    "llama": {
        "layers": 2,
        "width": 32,
        "heads": 4,
        "kv_heads": 2,
        "hidden": 64,
        "context": 16,
        "vocab": 32,
    },
    "lstm": {"width": 8, "steps": 4, "vocab": 8},
    "megatron": {"layers": 2, "width": 32, "heads": 2, "context": 16, "vocab": 32},
    "mlp": {"depth": 2, "width": 8},
    "resnet1001": {"depth": 11, "width": 4, "image": 16},
    "resnet200": {"width": 4, "blocks": (1, 2), "image": 32, "classes": 10},
    "resnet50": {"width": 4, "blocks": (1, 1), "image": 32, "classes": 10},
    "turing_nlg": {"layers": 3, "width": 28, "heads": 2, "context": 16, "vocab": 32},
    "unet": {"base": 4, "depth": 2, "image": 8},
    "vgg16": {"width": 4, "hidden": 32, "dropout": 0.1, "image": 32, "classes": 10},
    "vit": {"layers": 2, "width": 32, "heads": 2, "image": 16, "patch": 4, "classes": 10},
    "wrn28_10": {"depth": 10, "widen": 1, "dropout": 0.3, "image": 16},
}


def build(name: str, **kwargs: Any) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    builder: Builder = getattr(zoo, name)
    return builder(**{**SMALL[name], "batch": 2, **kwargs})


def test_every_model_of_the_zoo_is_tested() -> None:
    assert sorted(SMALL) == sorted(zoo.__all__)


@pytest.mark.parametrize("name", zoo.__all__)
def test_is_one_graph_and_a_step_lowers_its_loss(name: str) -> None:
    model, inputs = build(name)
    step = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = step(*inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert loss.shape == ()
    assert all(p.grad is not None for p in model.parameters())
    assert min(losses[1:]) < losses[0]


@pytest.mark.parametrize("name", zoo.__all__)
def test_the_seed_fixes_weights_and_inputs(name: str) -> None:
    made = []
    for _ in range(2):
        torch.manual_seed(3)
        model, inputs = build(name)
        made.append([*model.state_dict().values(), *inputs])
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


@pytest.mark.parametrize("name", zoo.__all__)
def test_takes_batch_and_dtype(name: str) -> None:
    model, inputs = build(name, batch=3, dtype=torch.float64)
    assert all(x.shape[0] == 3 for x in inputs)
    loss = model(*inputs)
    assert loss.dtype == torch.float64
    assert loss.isfinite()


@pytest.mark.parametrize("tied", [True, False])
def test_gpt_ties_its_head(tied: bool) -> None:
    model, _ = zoo.gpt(layers=1, width=8, heads=1, context=4, vocab=16, tied=tied)
    assert (model.head.weight is model.token.weight) is tied


def test_unet_of_the_paper_has_its_31_million_parameters() -> None:
    with torch.device("meta"):
        model, _ = zoo.unet(size="paper")
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == 31


def test_unet_refuses_an_image_that_does_not_halve() -> None:
    with pytest.raises(ValueError, match="divisible by 2"):
        zoo.unet(depth=3, image=20)
