"""The text of a repro script: a program, how it is compiled, and the comparison, in one file that needs torch alone."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pytest_fusealias.compilers import backend_module
from pytest_fusealias.repro import materials, standalone

if TYPE_CHECKING:
    from pytest_fusealias.compilers import Compiler
    from pytest_fusealias.model import Spec
    from pytest_fusealias.repro.graphs import GraphCase, StorageInput, TensorInput

HEAD = '"""Repro of a failed fusion_equiv check'
_INLINE_BYTES = 4096


class NoScriptError(Exception):
    """What is to be shown cannot be written as a script; the message says why."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a script is to show: that these checks fail for this test under this compiler."""

    test: str
    compiler: Compiler
    spec: Spec
    checks: tuple[str, ...]


def graph_script(asked: Asked, case: GraphCase, data: str = "") -> str:
    """Returns the script for a graph; storages too large for text are read from files whose names begin with `data`."""
    names, module = _module_text(case.graph)
    lines = [f"s{n} = {_storage_text(n, s, data)}" for n, s in enumerate(case.storages)]
    values = [f"        {_input_text(value)}," for value in case.inputs]
    build = "\n".join(
        [
            *module,
            "",
            "",
            "def build():",
            *(f"    {line}" for line in lines),
            "    return Program(Graph(), (",
            *values,
            "    ))",
        ]
    )
    return _assembled(asked, [*names, *_texts(materials)], build, train=asked.spec.train, grad=case.grad)


def program_script(asked: Asked, imports: list[str], build: str) -> str:
    """Returns the script for a program that other files define: `build` is the text of the function of that name."""
    return _assembled(asked, imports, build, train=asked.spec.train, grad=True)


def _assembled(asked: Asked, parts: list[str], build: str, *, train: bool | None, grad: bool) -> str:
    backend_lines, compile_line = backend_text(asked.compiler, asked.spec.dynamic)
    spec = asked.spec
    tolerance = "".join(
        f", {name}={getattr(spec, name)!r}" for name in ("rtol", "atol") if getattr(spec, name)
    )
    head = (
        f"{HEAD}: {', '.join(asked.checks)}\n\ntest:    {asked.test}\nbackend: {asked.compiler.name}\n"
        f"torch:   {torch.__version__}\n\nRun it with Python: it prints what differs and returns 1 while the check fails, "
        'and returns 0\nwhen it does not.\n"""'
    )
    call = (
        f"raise SystemExit(main(build, compiled, {asked.checks!r}, seed={spec.seed}, train={train}, grad={grad}"
        f"{tolerance}))"
    )
    text = [
        head.replace("\\", "\\\\"),
        "",
        *_texts(standalone),
        *parts,
        *backend_lines,
        "",
        "",
        build,
        "",
        "",
        "def compiled(function):",
        f"    return {compile_line}",
        "",
        "",
        'if __name__ == "__main__":',
        f"    {call}",
        "",
    ]
    return _futures_first("\n".join(text))


def _texts(module: types.ModuleType) -> list[str]:
    """Returns the code of a module, without its docstring."""
    return [inspect.getsource(module).partition('"""\n\n')[2].rstrip(), "", ""]


def _futures_first(text: str) -> str:
    """Moves the `from __future__` line, which each embedded file has, to the one place where it may stand."""
    future = "from __future__ import annotations\n"
    head, end, rest = text.partition('.\n"""\n')
    return f"{head}{end}\n{future}{rest.replace(future, '')}"


def _module_text(graph: torch.fx.GraphModule, name: str = "Graph") -> tuple[list[str], list[str]]:
    """Returns import lines and class texts of a graph module, those of its nested graphs first."""
    imports: list[str] = []
    classes: list[str] = []
    made: list[str] = []
    for child_name, child in graph.named_children():
        if not isinstance(child, torch.fx.GraphModule):
            raise NoScriptError(f"the graph calls a module of its own, {child_name} ({type(child).__name__})")
        child_imports, child_classes = _module_text(child, f"{name}_{child_name}")
        imports, classes = imports + child_imports, classes + child_classes
        made.append(f"        self.{child_name} = {name}_{child_name}()")
    if held := [n for n, _ in (*graph.named_parameters(recurse=False), *graph.named_buffers(recurse=False))]:
        raise NoScriptError(f"the graph holds tensors of its own: {', '.join(held[:3])}")
    code = graph.graph.python_code("self", verbose=False)
    imports += [line for key, value in code.globals.items() if (line := _import(key, value))]
    body = code.src.replace("\n\n\n", "\n").strip("\n")
    head = [
        f"class {name}(torch.nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        *made,
        "",
    ]
    indented = [f"    {line}".rstrip() for line in body.splitlines()]
    return list(dict.fromkeys(imports)), [*classes, "", "", *head, *indented]


def _import(name: str, value: Any) -> str:
    """Returns the line that gives a global of a graph's code its value."""
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__}" if name == value.__name__ else f"import {value.__name__} as {name}"
    if isinstance(value, float):
        return f"{name} = float({str(value)!r})"
    if value is type(None):
        return f"{name} = type(None)"
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not qualified:
        if module == "torch" or str(value).startswith("torch."):
            return f"{name} = {value}"
        raise NoScriptError(f"the graph uses {value!r}, which has no name to import")
    first, *rest = str(qualified).split(".")
    line = f"from {module} import {first}"
    if rest:
        return f"{line}\n{name} = {qualified}"
    return f"{line} as {name}" if name != first else line


def _storage_text(number: int, storage: StorageInput, data: str) -> str:
    if storage.recorded is None:
        return f"numbers({storage.nbytes}, {storage.dtype}, {storage.device!r}, seed={number})"
    text = (
        storage.text() if len(storage.recorded) <= _INLINE_BYTES or not data else f"file:{data}{number}.bin"
    )
    if text.startswith("file:"):
        return f"recorded('file:' + str(Path(__file__).parent / {text[5:]!r}), {storage.dtype}, {storage.device!r})"
    return f"recorded({text!r}, {storage.dtype}, {storage.device!r})"


def data_files(case: GraphCase, data: str) -> dict[str, bytes]:
    """Returns the files that a script with this `data` reads, by name."""
    large = {
        n: s.recorded for n, s in enumerate(case.storages) if s.recorded and len(s.recorded) > _INLINE_BYTES
    }
    return {f"{data}{n}.bin": content for n, content in large.items()}


def _input_text(value: TensorInput | float) -> str:
    if isinstance(value, (bool, int, float)):
        return repr(value)
    text = f"view(s{value.storage}, {value.dtype}, {value.shape}, {value.stride}"
    text += f", {value.offset}" if value.offset else ""
    text += ", requires_grad=True" if value.requires_grad else ""
    return text + ("" if value.leaf else ", leaf=False") + ")"


def backend_text(compiler: Compiler, dynamic: bool | None) -> tuple[list[str], str]:
    """Returns the lines before and the expression that compiles `function`; raises NoScriptError for a local backend."""
    target = compiler.target
    lines: list[str] = []
    if isinstance(target, str):
        module = backend_module(target)
        if module.split(".")[0] != "torch":
            lines = [*path_lines(module), f"import {module}  # registers the backend"]
        if "inductor" in target:
            lines += ["import torch._inductor.config", "torch._inductor.config.fallback_random = True"]
        return lines, f"torch.compile(function, backend={target!r}, dynamic={dynamic})"
    lines, expression = named_text(target)
    if compiler.takes_function:
        return lines, f"{expression}(function)"
    return lines, f"torch.compile(function, backend={expression}, dynamic={dynamic})"


def named_text(target: Any) -> tuple[list[str], str]:
    """Returns the lines that import a function and the expression that names it; raises NoScriptError."""
    module, qualified = getattr(target, "__module__", ""), getattr(target, "__qualname__", "")
    place: Any = sys.modules.get(module)
    if place is not None and re.fullmatch(r"[\w.]+", qualified):
        found = functools.reduce(lambda value, part: getattr(value, part, None), qualified.split("."), place)
        if found is target:
            return [*path_lines(module), f"import {module}"], f"{module}.{qualified}"
    raise NoScriptError(f"the backend {target!r} is not importable by name; define it at the top of a module")


def path_lines(module: str) -> list[str]:
    """Returns the lines that let a script import a module as this process did."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or "site-packages" in file:
        return []
    depth = module.count(".") + (1 if Path(file).name == "__init__.py" else 0)
    return ["import sys", f"sys.path.insert(0, {str(Path(file).resolve().parents[depth])!r})"]
