"""An LSTM language model, unrolled step by step: a long, narrow graph with reused weights.

The gates are written out, since ``torch.compile`` steps around ``nn.LSTM``. Equations: "Long
Short-Term Memory" (Hochreiter and Schmidhuber, 1997) with the forget gate of Gers et al. (2000).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Cell(nn.Module):
    """One time step of one layer; x, hidden and state are (batch, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(width, 4 * width)
        self.from_hidden = nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.from_input(x) + self.from_hidden(hidden)
        keep, write, show, value = gates.chunk(4, dim=1)
        state = keep.sigmoid() * state + write.sigmoid() * value.tanh()
        return show.sigmoid() * state.tanh(), state


class LSTM(nn.Module):
    """``forward(tokens, targets)``, both int64 (batch, steps), is the mean cross-entropy."""

    def __init__(self, *, layers: int, width: int, vocab: int) -> None:
        super().__init__()
        self.width = width
        self.token = nn.Embedding(vocab, width)
        self.cells = nn.ModuleList(Cell(width) for _ in range(layers))
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        sequence = list(self.token(tokens).unbind(1))
        for cell in self.cells:
            hidden = state = sequence[0].new_zeros(tokens.shape[0], self.width)
            for step, x in enumerate(sequence):
                hidden, state = cell(x, hidden, state)
                sequence[step] = hidden
        logits = self.head(torch.stack(sequence, dim=1))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def lstm(
    *,
    layers: int = 2,
    width: int = 64,
    steps: int = 16,
    vocab: int = 64,
    batch: int = 8,
    dtype: torch.dtype = torch.float32,
) -> tuple[LSTM, tuple[Tensor, Tensor]]:
    """An LSTM and random ``(tokens, targets)``, int64 (batch, steps) each."""
    model = LSTM(layers=layers, width=width, vocab=vocab)
    tokens = torch.randint(vocab, (batch, steps + 1))
    return model.to(dtype), (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
