"""Which tensors can a program reach? A walk over arguments, state, closures, bound objects and globals.

Paths are stable between two equal builds of a program, so that tensors of two arms can be paired by path.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

# Objects of these packages hold no program state of the user's, but whole interpreters of references.
_FOREIGN = (
    "torch",
    "numpy",
    "_pytest",
    "pytest",
    "pluggy",
    "threading",
    "logging",
    "concurrent",
    "importlib",
    "hypothesis",
)
_ATOMS = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    type,
    types.ModuleType,
    torch.dtype,
    torch.device,
)
_HOOK_DICTS = "_hooks"


@dataclass(frozen=True, slots=True)
class Reached:
    """A tensor and the first path on which it was found."""

    path: str
    tensor: torch.Tensor


def walk(roots: Mapping[str, object]) -> list[Reached]:
    """Returns every tensor reachable from `roots` (path -> object), each path once, in a deterministic order.

    Numpy arrays that are writeable count as tensors over the same memory. A tensor that is reached on several paths is
    listed under each; containers and objects are entered once.
    """
    walker = _Walker()
    for path, root in roots.items():
        walker.visit(path, root)
    return walker.found


def objects(roots: Mapping[str, object]) -> list[object]:
    """Returns every container and object that `walk` enters."""
    walker = _Walker()
    for path, root in roots.items():
        walker.visit(path, root)
    return list(walker.entered.values())


def globals_of(function: Callable[..., Any]) -> dict[str, object]:
    """Returns the module globals that the function's code, nested code included, loads by name."""
    code = getattr(function, "__code__", None)
    namespace = getattr(function, "__globals__", {})
    if code is None:
        return {}
    return {name: namespace[name] for name in _loaded_names(code) if name in namespace}


def _loaded_names(code: types.CodeType) -> list[str]:
    names = [
        str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    ]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _loaded_names(constant)
    return list(dict.fromkeys(names))


class _Walker:
    def __init__(self) -> None:
        self.found: list[Reached] = []
        self._paths: dict[str, torch.Tensor] = {}
        self.entered: dict[int, object] = {}  # keeps what was entered alive, so that an id means one object
        self._tensor_paths: dict[int, str] = {}

    def visit(self, path: str, root: object) -> None:
        """Enters `root` and all below it; a stack instead of recursion, since programs nest deeply."""
        stack: list[tuple[str, object]] = [(path, root)]
        while stack:
            where, value = stack.pop()
            if isinstance(value, torch.Tensor):
                stack.extend(reversed(list(self._add_tensor(where, value))))
            elif not isinstance(value, _ATOMS) and id(value) not in self.entered:
                self.entered[id(value)] = value
                stack.extend(reversed(list(self._children(where, value))))

    def _add_tensor(self, path: str, tensor: torch.Tensor) -> Iterator[tuple[str, object]]:
        if self._paths.get(path) is tensor:
            return
        while path in self._paths:  # another tensor of the same name, such as a global of another module
            path += "'"
        self._paths[path] = tensor
        self.found.append(Reached(path, tensor))
        first_visit = id(tensor) not in self._tensor_paths
        self._tensor_paths.setdefault(id(tensor), path)
        if first_visit and (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not None:
            yield f"{path}.grad", tensor.grad
        if first_visit:
            yield from ((f"{path}.{name}", item) for name, item in getattr(tensor, "__dict__", {}).items())

    def _children(self, path: str, value: Any) -> Iterator[tuple[str, object]]:
        if isinstance(value, Mapping):
            yield from self._items(path, value)
            yield from _own_attributes(path, value)
        elif isinstance(value, (list, tuple, deque)):
            yield from ((f"{path}{_index(value, i)}", item) for i, item in enumerate(value))
            yield from _own_attributes(path, value)
        elif isinstance(value, functools.partial):
            yield from (
                (f"{path}.func", value.func),
                (f"{path}.args", value.args),
                (f"{path}.keywords", value.keywords),
            )
        elif isinstance(value, types.MethodType):
            yield from ((f"{path}.__self__", value.__self__), (path, value.__func__))
        elif isinstance(value, types.FunctionType):
            yield from _function_children(path, value)
        elif isinstance(value, torch.nn.Module):
            yield from _module_children(path, value)
        elif _is_array(value):
            yield path, torch.from_numpy(value)
        elif isinstance(value, torch.optim.Optimizer) or not _is_foreign(value):
            yield from _attributes(path, value)
        else:  # an object of a library: its own tensors, and nothing further
            yield from (
                (p, item) for p, item in _own_attributes(path, value) if isinstance(item, torch.Tensor)
            )

    def _items(self, path: str, mapping: Mapping[Any, Any]) -> Iterator[tuple[str, object]]:
        for position, (key, item) in enumerate(list(mapping.items())):
            if isinstance(key, torch.Tensor):  # optimizer state is keyed by parameter
                yield f"{path}[{self._tensor_paths.get(id(key), f'tensor {position}')}]", item
            else:
                yield f"{path}[{key!r}]", item


def _own_attributes(path: str, value: object) -> Iterator[tuple[str, object]]:
    yield from ((f"{path}.{name}", item) for name, item in getattr(value, "__dict__", {}).items())


def _index(value: list[Any] | tuple[Any, ...] | deque[Any], position: int) -> str:
    fields = getattr(value, "_fields", None)
    return f".{fields[position]}" if fields else f"[{position}]"


def _is_array(value: object) -> bool:
    if type(value).__module__ != "numpy" or type(value).__name__ != "ndarray":
        return False
    array: Any = value
    return bool(array.flags.writeable and array.dtype.kind in "biufc" and min(array.strides, default=0) >= 0)


def _is_foreign(value: object) -> bool:
    return type(value).__module__.split(".")[0] in _FOREIGN


def _function_children(path: str, function: types.FunctionType) -> Iterator[tuple[str, object]]:
    if function.__module__ and function.__module__.split(".")[0] in _FOREIGN and function.__closure__ is None:
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{path}.closure.{name}", cell.cell_contents
        except ValueError:  # the cell is still empty
            continue
    if function.__defaults__:
        yield f"{path}.defaults", function.__defaults__
    if function.__kwdefaults__:
        yield f"{path}.kwdefaults", function.__kwdefaults__
    for name, value in globals_of(function).items():
        yield f"global {name}", value


def _module_children(path: str, module: torch.nn.Module) -> Iterator[tuple[str, object]]:
    inner = ("_parameters", "_buffers", "_modules")
    for table in inner:
        for name, item in vars(module)[table].items():
            yield f"{path}.{name}", item
    for name, item in vars(module).items():
        own_table = name.startswith("_") and name.endswith(_HOOK_DICTS)
        if name not in inner and not own_table:
            yield f"{path}.{name}", item
        elif own_table:
            hooks = [hook for hook in item.values() if callable(hook)] if isinstance(item, Mapping) else []
            yield from ((f"{path}.{name}[{i}]", hook) for i, hook in enumerate(hooks))
    yield from _class_attributes(path, module)
    if "forward" not in vars(module) and not _is_foreign(module):
        yield f"{path}.forward", type(module).forward


def _class_attributes(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Tensors and containers that the classes of a user's object hold, and what its call would reach."""
    for kind in type(value).__mro__:
        if kind.__module__.split(".")[0] in (*_FOREIGN, "builtins"):
            continue
        for name, item in vars(kind).items():
            shadowed = name in getattr(value, "__dict__", {})
            if not shadowed and (isinstance(item, (torch.Tensor, list, dict)) or name == "__call__"):
                yield f"{path}.{name}", item


def _attributes(path: str, value: object) -> Iterator[tuple[str, object]]:
    is_optimizer = isinstance(value, torch.optim.Optimizer)
    for name, item in getattr(value, "__dict__", {}).items():
        if not (is_optimizer and "_hook" in name):
            yield f"{path}.{name}", item
    yield from _class_attributes(path, value)
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if inspect.ismemberdescriptor(getattr(kind, name, None)) and hasattr(value, name):
                yield f"{path}.{name}", getattr(value, name)
