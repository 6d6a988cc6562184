"""The process that trains, started by the demo: ``python -m karma_fx.tools.demo_worker FD JOB``.

``FD`` is where reports go, ``JOB`` a ``demo_runs.Job`` as JSON.
"""

from __future__ import annotations

import json
import pydoc_data.topics
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn

import karma_fx
from karma_fx.models.gpt import GPT
from karma_fx.tools.demo_runs import Job, Step

VOCAB = 256
ADAMW_STATES = 2


def text_bytes() -> Tensor:
    """The manual that comes with every Python, as int64 bytes."""
    text = "\n".join(pydoc_data.topics.topics.values())
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


def batches(job: Job) -> Iterator[tuple[Tensor, Tensor]]:
    """Random pieces of the text, the same in every run: tokens, and the tokens that follow."""
    text = text_bytes()
    generator = torch.Generator().manual_seed(1)
    while True:
        starts = torch.randint(len(text) - job.context, (job.batch, 1), generator=generator)
        pieces = text[starts + torch.arange(job.context + 1)]
        yield pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


def compiled(model: nn.Module, job: Job) -> Callable[[Tensor, Tensor], Tensor]:
    """The three ways to train; the model is the same and knows nothing of them."""
    if job.mode == "eager":
        return model
    if job.mode == "reference":
        return torch.compile(model, backend="aot_eager", fullgraph=True)
    parameter_bytes = sum(p.nbytes for p in model.parameters())
    options: dict[str, str | int | bool | Callable[..., Any]] = {
        "memory": job.memory_bytes,
        "far": job.far,
        "reserve": ADAMW_STATES * parameter_bytes,
    }
    return torch.compile(model, backend="karma", fullgraph=True, options=options)


def peak_rss_bytes() -> int:
    """The most memory that this process has had in RAM."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def measured(loss: Tensor, step_s: float, job: Job) -> Step:
    step = Step(float(loss.item()).hex(), step_s, peak_rss_bytes())
    if job.mode != "karma":
        return step
    stats = karma_fx.stats()
    return replace(step, offloaded_bytes=stats.offloaded_bytes, stalled_s=stats.stalled_s)


def train(job: Job) -> Iterator[Step]:
    torch.manual_seed(0)
    model = GPT(
        layers=job.layers, width=job.width, heads=job.heads, context=job.context, vocab=VOCAB
    )
    step_fn = compiled(model, job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for tokens, targets in islice(batches(job), job.steps):
        start_s = time.perf_counter()
        optimizer.zero_grad()
        loss = step_fn(tokens, targets)
        loss.backward()
        optimizer.step()
        yield measured(loss, time.perf_counter() - start_s, job)


def report(stream: TextIO, message: dict[str, object]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def main(report_fd: int, job: Job) -> None:
    if job.limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (job.limit_bytes, job.limit_bytes))
    with open(report_fd, "w", encoding="utf-8") as stream:
        try:
            for step in train(job):
                report(stream, asdict(step))
        finally:
            report(stream, {"peak_rss_bytes": peak_rss_bytes()})


if __name__ == "__main__":
    main(int(sys.argv[1]), Job(**json.loads(sys.argv[2])))
