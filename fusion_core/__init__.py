"""A torch.compile backend for programs that update tensors in place. Importing it compiles nothing."""

from fusion_core.errors import FallbackError, FusionError, InputError, OptionError, VerifyError
from fusion_core.estimate import estimate_memory
from fusion_core.explain import compile, explain
from fusion_core.memory.estimate import MemoryEstimate
from fusion_core.options import Options

__all__ = [
    "FallbackError",
    "FusionError",
    "InputError",
    "MemoryEstimate",
    "OptionError",
    "Options",
    "VerifyError",
    "compile",
    "estimate_memory",
    "explain",
]
