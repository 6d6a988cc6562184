"""The zoo's defaults are the published architectures: parameter counts, on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import karma_fx.models as zoo

# What: the builder, its keywords, the published parameters, and how far off ours may be. Papers
# round their figures; 0.7b is named after a size that its settings fall short of (0.65 billion).
PUBLISHED: dict[str, tuple[str, dict[str, Any], float, float]] = {
    "resnet50": ("resnet50", {}, 25_557_032, 0),
    "resnet200": ("resnet200", {}, 64.7e6, 0.01),
    "resnet1001": ("resnet1001", {}, 10.2e6, 0.03),
    "vgg16": ("vgg16", {}, 138_357_544, 0),
    "wrn28_10": ("wrn28_10", {"dropout": 0.3}, 36.5e6, 0.01),
    "unet": ("unet", {"size": "paper"}, 31.0e6, 0.02),
    "vit": ("vit", {}, 86_567_656, 0),
    "megatron-0.7b": ("megatron", {"size": "0.7b"}, 0.7e9, 0.08),
    "megatron-1.2b": ("megatron", {"size": "1.2b"}, 1.2e9, 0.05),
    "megatron-2.5b": ("megatron", {"size": "2.5b"}, 2.5e9, 0.05),
    "megatron-4.2b": ("megatron", {"size": "4.2b"}, 4.2e9, 0.05),
    "megatron-8.3b": ("megatron", {"size": "8.3b"}, 8.3e9, 0.05),
    "turing_nlg": ("turing_nlg", {}, 17e9, 0.03),
    "llama": ("llama", {}, 1.24e9, 0.02),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_has_its_published_parameters_and_allocates_none(name: str) -> None:
    builder, kwargs, published, tolerance = PUBLISHED[name]
    with torch.device("meta"):
        model, inputs = getattr(zoo, builder)(batch=2, **kwargs)
    tensors = [*model.parameters(), *model.buffers(), *inputs]
    assert all(tensor.is_meta for tensor in tensors)
    parameters = sum(p.numel() for p in model.parameters())
    assert abs(parameters - published) <= tolerance * published, parameters


@pytest.mark.parametrize("name", ["resnet50", "unet", "vgg16", "vit"])
def test_takes_its_inputs_at_full_size(name: str) -> None:
    builder, kwargs, _, _ = PUBLISHED[name]
    with torch.device("meta"):
        model, inputs = getattr(zoo, builder)(batch=2, dtype=torch.bfloat16, **kwargs)
    loss = model(*inputs)
    assert loss.shape == ()
    assert loss.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("resnet1001", {"depth": 1000}, "9 \\* n"),
        ("wrn28_10", {"depth": 29}, "6 \\* n"),
        ("vgg16", {"image": 40}, "divisible by 32"),
        ("unet", {"size": "huge"}, "small, paper"),
        ("megatron", {"size": "9b"}, "0.7b, 1.2b"),
        ("vit", {"image": 100}, "divisible by patch"),
        ("llama", {"heads": 3}, "divisible by 2"),
    ],
)
def test_refuses_what_it_cannot_build(name: str, kwargs: dict[str, Any], message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        getattr(zoo, name)(**kwargs)
