"""The model zoo: one family a file.

Each name here is a builder, which takes keyword arguments (``batch`` and ``dtype`` among them)
and returns ``(module, inputs)``, where ``module(*inputs)`` is a scalar loss. Weights and inputs
come from torch's global generator, so that ``torch.manual_seed`` fixes both.
"""

from karma_fx.models.convnet import convnet
from karma_fx.models.gpt import gpt
from karma_fx.models.llama import llama
from karma_fx.models.lstm import lstm
from karma_fx.models.megatron import megatron, turing_nlg
from karma_fx.models.mlp import mlp
from karma_fx.models.resnet import resnet50, resnet200, resnet1001
from karma_fx.models.unet import unet
from karma_fx.models.vgg import vgg16
from karma_fx.models.vit import vit
from karma_fx.models.wrn import wrn28_10

__all__ = [
    "convnet",
    "gpt",
    "llama",
    "lstm",
    "megatron",
    "mlp",
    "resnet50",
    "resnet200",
    "resnet1001",
    "turing_nlg",
    "unet",
    "vgg16",
    "vit",
    "wrn28_10",
]
