"""Element by element: do two tensors, or two storages, hold the same?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pytest_fusealias.model import Spec
    from pytest_fusealias.observation import StorageRecord, TensorRecord

# (rtol, atol) by dtype: the defaults of torch.testing.assert_close, from its documentation. All other dtypes: exact.
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}


def difference(a: TensorRecord, b: TensorRecord, spec: Spec) -> str:
    """Returns how two tensors of one type differ beyond tolerance, or an empty string; `a` is eager's."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return ""  # layout reports it
    x, y = a.value, b.value
    if a.layout != b.layout:
        return ""
    if not a.strided:
        x, y = x.to_dense(), y.to_dense()
    if x.is_quantized:
        x, y = x.dequantize(), y.dequantize()
    return _elementwise(x, y, spec)


def tolerance(dtype: torch.dtype, spec: Spec) -> tuple[float, float]:
    """Returns (rtol, atol) for a dtype: the marker's where given, else torch's default."""
    rtol, atol = TOLERANCES.get(dtype, (0.0, 0.0))
    return (rtol if spec.rtol is None else spec.rtol, atol if spec.atol is None else spec.atol)


def _close(expected: torch.Tensor, actual: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Returns an elementwise bool mask; dtypes that torch cannot compare are compared as bytes."""
    rtol, atol = tolerance(expected.dtype, spec)
    if expected.dtype.is_complex or expected.dtype.is_floating_point:
        wide = torch.complex128 if expected.dtype.is_complex else torch.float64
        x, y = expected.to(wide), actual.to(wide)
        return torch.isclose(y, x, rtol=rtol, atol=atol, equal_nan=True)
    return expected == actual


def _elementwise(expected: torch.Tensor, actual: torch.Tensor, spec: Spec) -> str:
    if expected.numel() == 0:
        return ""
    wrong = ~_close(expected, actual, spec)
    count = int(wrong.sum())
    if count == 0:
        return ""
    first = tuple(int(i) for i in wrong.nonzero()[0])
    where = f" at {list(first)}" if first else ""
    return (
        f"{count} of {wrong.numel()} elements differ; first{where}: eager {_shown(expected[first])}, "
        f"the backend {_shown(actual[first])}"
    )


def _shown(value: torch.Tensor) -> str:
    item = value.item()
    return f"{item:.7g}" if isinstance(item, float) else str(item)


def storage_difference(a: StorageRecord, b: StorageRecord, spec: Spec) -> str:
    """Returns how two storages differ, or an empty string; elements that eager does not write must keep their bits."""
    if a.after.numel() != b.after.numel():
        return f"its storage has {a.after.numel()} bytes after eager, {b.after.numel()} after the backend"
    if torch.equal(a.after, b.after):
        return ""
    item = a.dtype.itemsize
    usable = a.after.numel() // item * item
    expected, actual = a.after[:usable].view(a.dtype), b.after[:usable].view(a.dtype)
    written = _written_elements(a, usable, item)
    wrong = torch.where(
        written, ~_close(expected, actual, spec), _bits_differ(a.after, b.after, usable, item)
    )
    if not bool(wrong.any()):
        return ""
    first = int(wrong.nonzero()[0])
    before = a.before[:usable].view(a.dtype)
    was = _shown(before[first]) if first < before.numel() else "not there"
    if bool(written[first]):
        lost = torch.equal(b.after, b.before) and not torch.equal(a.after, a.before)
        kind = "the mutation is lost" if lost else "the mutation differs"
    else:
        kind = "memory that eager does not write has changed"
    return (
        f"{kind}: {int(wrong.sum())} of {wrong.numel()} storage elements; first at {first}: before {was}, "
        f"eager {_shown(expected[first])}, the backend {_shown(actual[first])}"
    )


def _written_elements(record: StorageRecord, usable: int, item: int) -> torch.Tensor:
    """Elements that eager wrote: those the control run saw written, and those whose bits changed."""
    changed = torch.ones(usable // item, dtype=torch.bool, device=record.after.device)
    if record.before.numel() == record.after.numel():
        changed = _bits_differ(record.before, record.after, usable, item)
    if record.written is None or record.written.numel() < usable:
        return changed if record.written is not None else torch.ones_like(changed)
    seen = record.written[:usable].reshape(-1, item).any(1).to(changed.device)
    return changed | seen


def _bits_differ(a: torch.Tensor, b: torch.Tensor, usable: int, item: int) -> torch.Tensor:
    return (a[:usable] != b[:usable]).reshape(-1, item).any(1)
