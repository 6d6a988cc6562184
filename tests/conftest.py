"""Every test starts from the same seed and from a compiler that remembers nothing.

Hypothesis draws the same examples in every run; `HYPOTHESIS_PROFILE=explore` draws new ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", max_examples=1_000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(autouse=True)
def clean_torch() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
