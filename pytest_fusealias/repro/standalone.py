"""Compare a compiled program with eager, by torch alone; the text of this file ends every repro script."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import combinations
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass
class Program:
    """What runs: `call(*args, **kwargs)`, or `drive(call, *args, **kwargs)`; `state` is looked at as well."""

    call: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    state: Any = None
    drive: Any = None


def walk(value: Any, path: str, found: dict[str, torch.Tensor], seen: set[int]) -> None:
    """Adds every tensor that is reached from a value, and its gradient, by path."""
    if isinstance(value, torch.Tensor):
        found[path] = value
        if value.is_leaf and value.grad is not None:
            found[f"{path}.grad"] = value.grad
        return
    if id(value) in seen or isinstance(value, (str, bytes, int, float, type, type(torch))):
        return
    seen.add(id(value))
    if isinstance(value, dict):
        parts = {f"{path}[{key!r}]": part for key, part in value.items()}
    elif isinstance(value, (list, tuple)):
        parts = {f"{path}[{position}]": part for position, part in enumerate(value)}
    else:
        parts = {f"{path}.{name}": part for name, part in getattr(value, "__dict__", {}).items()}
        cells = getattr(value, "__closure__", None) or ()
        parts |= {f"{path} closure {n}": cell.cell_contents for n, cell in enumerate(cells)}
    for name, part in parts.items():
        walk(part, name, found, seen)


def observe(build: Any, compiled: Any, *, seed: int, train: bool | None, grad: bool) -> dict[str, Any]:
    """Builds the program, runs it with `compiled(function)` in the place of its function, and says what is there after."""
    torch.manual_seed(seed)
    random.seed(seed)
    program = build()
    roots = [program.args, program.kwargs, program.state, program.call]
    before: dict[str, torch.Tensor] = {}
    walk(roots, "inputs", before, set())
    storages = {path: (tensor, tensor.untyped_storage()) for path, tensor in before.items()}
    torch.manual_seed(seed)
    random.seed(seed)
    error, result = "", None
    try:
        with torch.set_grad_enabled(grad):
            call = compiled(program.call)
            if program.drive is None:
                result = call(*program.args, **program.kwargs)
            else:
                result = program.drive(call, *program.args, **program.kwargs)
            if train or (train is None and program.drive is None):
                backward(result, seed)
    except Exception as raised:  # noqa: BLE001 - whether it raises is compared
        error = f"{type(raised).__name__}: {str(raised)[:300]}"
    outputs: dict[str, torch.Tensor] = {}
    for key, leaf in pytree.tree_flatten_with_path(result)[0]:
        walk(vars_of(leaf), f"output{pytree.keystr(key)}", outputs, set())
    after: dict[str, torch.Tensor] = {}
    walk(roots, "inputs", after, set())
    scalars = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, (bool, int, float))]
    return {
        "raises": error,
        "outputs": outputs,
        "inputs": before | after,
        "storages": {path: elements(tensor, storage) for path, (tensor, storage) in storages.items()},
        "scalars": scalars,
        "rng": torch.get_rng_state(),
    }


def vars_of(leaf: Any) -> Any:
    """Returns the parts of a dataclass, and anything else as it is."""
    if is_dataclass(leaf) and not isinstance(leaf, type):
        return {f.name: getattr(leaf, f.name) for f in fields(leaf)}
    return leaf


def backward(result: Any, seed: int) -> None:
    """Runs backward from every output that requires grad, with random cotangents."""
    leaves = pytree.tree_leaves(result)
    roots = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    generator = torch.Generator().manual_seed(seed + 1)
    kinds = [torch.complex64 if root.is_complex() else torch.float32 for root in roots]
    made = [torch.randn(r.shape, generator=generator, dtype=k) for r, k in zip(roots, kinds, strict=True)]
    if roots:
        torch.autograd.backward(roots, [m.to(r.device, r.dtype) for m, r in zip(made, roots, strict=True)])


def elements(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """Returns a copy of everything in a tensor's storage."""
    count = storage.nbytes() // tensor.dtype.itemsize
    plain = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return plain.set_(storage, 0, (count,), (1,)).clone()


def differ(a: torch.Tensor, b: torch.Tensor, tolerance: dict[str, Any]) -> str:
    """Returns how values differ beyond tolerance; tensors of unlike shape or dtype are the layout's matter."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return ""
    try:
        torch.testing.assert_close(b.detach(), a.detach(), equal_nan=True, check_stride=False, **tolerance)
    except AssertionError as error:
        return " ".join(line.strip() for line in str(error).splitlines() if line.strip())[:300]
    return ""


def overlap(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the distance in bytes of two tensors that share elements, or None."""
    if a.device != b.device or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return None
    size = a.untyped_storage().nbytes()
    if size == 0 or a.numel() == 0 or b.numel() == 0:
        return None
    touched = []
    for tensor in (a, b):
        index: Any = torch.zeros((), dtype=torch.int64)
        for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
            index = index.unsqueeze(-1) + torch.arange(length) * stride
        first = (index.reshape(-1) + tensor.storage_offset()) * tensor.element_size()
        mask = torch.zeros(size, dtype=torch.bool)
        mask[(first.unsqueeze(-1) + torch.arange(tensor.element_size())).reshape(-1)] = True
        touched.append(mask)
    if not bool((touched[0] & touched[1]).any()):
        return None
    return (b.data_ptr() - a.data_ptr(),)


def strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Returns the strides that address anything."""
    return tuple(s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1 and tensor.numel())


def facts(tensor: torch.Tensor) -> dict[str, tuple[Any, ...]]:
    """Returns what the checks `layout` and `meta` compare."""
    return {
        "layout": (tuple(tensor.shape), strides(tensor), tensor.dtype, tensor.device),
        "meta": (tensor.requires_grad, tensor.is_leaf, tensor.grad_fn is not None, type(tensor).__name__),
    }


def differences(
    eager: dict[str, Any], compiled: dict[str, Any], tolerance: dict[str, Any]
) -> list[tuple[str, str]]:
    """Returns (check, text) for everything that tells the compiled run from eager's."""
    found: list[tuple[str, str]] = []
    if bool(eager["raises"]) != bool(compiled["raises"]):
        return [("raises", f"eager: {eager['raises'] or 'runs'}; compiled: {compiled['raises'] or 'runs'}")]
    for path, one in eager["storages"].items():
        if text := differ(one, compiled["storages"][path], tolerance):
            found.append(("mutation", f"{path}: {text}"))
    for role in ("outputs", "inputs"):
        found += compare_tensors(eager[role], compiled[role], role, tolerance)
    if eager["scalars"] != compiled["scalars"]:
        found.append(("values", f"eager returns {eager['scalars']}, compiled {compiled['scalars']}"))
    if not torch.equal(eager["rng"], compiled["rng"]):
        found.append(("rng", "other random numbers were drawn"))
    return found + compare_sharing(eager, compiled)


def compare_tensors(
    eager: dict[str, torch.Tensor], compiled: dict[str, torch.Tensor], role: str, tolerance: dict[str, Any]
) -> list[tuple[str, str]]:
    """Compares tensors by path: values, facts, and which there are."""
    found = []
    for path in eager.keys() | compiled.keys():
        kind = "grads" if path.endswith(".grad") else "values" if role == "outputs" else "mutation"
        if path not in eager or path not in compiled:
            found.append((kind, f"{path}: only in {'eager' if path in eager else 'compiled'}"))
            continue
        a, b = eager[path], compiled[path]
        if text := differ(a, b, tolerance):
            found.append((kind, f"{path}: {text}"))
        one, two = facts(a), facts(b)
        names = [] if kind == "grads" else [name for name in one if one[name] != two[name]]
        found += [(name, f"{path}: eager {one[name]}, compiled {two[name]}") for name in names]
    return found


def compare_sharing(eager: dict[str, Any], compiled: dict[str, Any]) -> list[tuple[str, str]]:
    """Compares which tensors share memory, and which are one object."""
    found = []
    one, two = (run["inputs"] | run["outputs"] for run in (eager, compiled))
    for first, second in combinations([path for path in one if path in two], 2):
        a, b = overlap(one[first], one[second]), overlap(two[first], two[second])
        if a != b:
            said = ["distinct" if o is None else f"share memory, {o[0]} bytes apart" for o in (a, b)]
            found.append(("alias", f"{first} and {second}: eager {said[0]}, compiled {said[1]}"))
        same = one[first] is one[second], two[first] is two[second]
        if same[0] != same[1] and None in (a, b):
            found.append(
                ("identity", f"{first} and {second}: one object: eager {same[0]}, compiled {same[1]}")
            )
    return found


def main(
    build: Any,
    compiled: Any,
    checks: tuple[str, ...],
    *,
    seed: int,
    train: bool | None = None,
    grad: bool = True,
    **tolerance: Any,
) -> int:
    """Prints what differs in the named checks; returns 1 where something does, else 0."""
    eager = observe(build, lambda function: function, seed=seed, train=train, grad=grad)
    other = observe(build, compiled, seed=seed, train=train, grad=grad)
    found = [(check, text) for check, text in differences(eager, other, tolerance) if check in checks]
    for check, text in found:
        print(f"FAILS {check}: {text}")  # noqa: T201 - a script speaks to its reader
    if not found:
        print(f"does not fail: {', '.join(checks)}")  # noqa: T201
    return 1 if found else 0
