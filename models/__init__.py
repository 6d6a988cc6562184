"""The model zoo: one model a file.

Each name here is a builder, which takes keyword arguments (``batch`` and ``dtype`` among them)
and returns ``(module, inputs)``, where ``module(*inputs)`` is a scalar loss. Weights and inputs
come from torch's global generator, so that ``torch.manual_seed`` fixes both.
"""

from karma_fx.models.convnet import convnet
from karma_fx.models.gpt import gpt
from karma_fx.models.lstm import lstm
from karma_fx.models.mlp import mlp
from karma_fx.models.unet import unet

__all__ = ["convnet", "gpt", "lstm", "mlp", "unet"]
