"""Build the inputs of a graph; the text of this file stands in every repro script that holds a graph."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import torch


def numbers(nbytes: int, dtype: torch.dtype, device: str, seed: int) -> torch.Tensor:
    """Returns a storage of so many bytes, as a flat tensor of a dtype, filled by a seed; integers are 0, 1 or 2."""
    count = nbytes // dtype.itemsize
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        plain = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(count, generator=generator, dtype=plain).to(dtype).to(device)
    most = 2 if dtype is torch.bool else 3
    return torch.randint(0, most, (count,), generator=generator).to(dtype).to(device)


def recorded(text: str, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Returns a storage, as a flat tensor of a dtype, from its bytes, which are text here or lie in the named file."""
    packed = (
        Path(text.removeprefix("file:")).read_bytes() if text.startswith("file:") else base64.b85decode(text)
    )
    data = bytearray(zlib.decompress(packed))
    return torch.frombuffer(data, dtype=dtype).clone().to(device) if data else torch.empty(0, dtype=dtype)


def view(
    base: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int = 0,
    *,
    requires_grad: bool = False,
    leaf: bool = True,
) -> torch.Tensor:
    """Returns a tensor on the storage of another; one that is no leaf is a copy, since autograd must know its origin."""
    made = torch.empty(0, dtype=dtype, device=base.device).set_(base.untyped_storage(), offset, shape, stride)
    made.requires_grad_(requires_grad)
    return made if leaf else made.clone()
