"""The graphs that Dynamo gives to a backend, each with a description of the inputs that it ran on."""

from __future__ import annotations

import base64
import copy
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensor

from fusion_core.overlap import bytes_of
from pytest_fusealias.compilers import Compiler, as_dynamo_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_RECORDED_BYTES = 64 << 20


class NotDescribedError(Exception):
    """An input that a script cannot build; the message says which and why."""


@dataclass(frozen=True, slots=True)
class StorageInput:
    """Memory of inputs: its size, what its elements are, and its bytes, compressed; without bytes, numbers from a seed."""

    nbytes: int
    dtype: torch.dtype
    device: str
    recorded: bytes | None = None

    def text(self) -> str:
        """Returns the recorded bytes as text."""
        return base64.b85encode(self.recorded or b"").decode()


@dataclass(frozen=True, slots=True)
class TensorInput:
    """A tensor over one of the storages; `offset` and `stride` count elements."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    requires_grad: bool = False
    leaf: bool = True


@dataclass(frozen=True, slots=True)
class GraphCase:
    """A graph and what it runs on; `inputs` are in the order of the placeholders, numbers as they are."""

    graph: torch.fx.GraphModule
    storages: tuple[StorageInput, ...]
    inputs: tuple[TensorInput | bool | int | float, ...]
    grad: bool = True

    @property
    def operations(self) -> int:
        """Number of nodes that compute something."""
        return sum(node.op not in ("placeholder", "output", "get_attr") for node in self.graph.graph.nodes)


@dataclass
class Recorder:
    """Compiles like `compiler`, and keeps what it was given."""

    compiler: Compiler
    cases: list[GraphCase] = field(default_factory=list)

    def as_compiler(self) -> Compiler:
        """Returns the compiler that records."""
        return Compiler(self.compiler.name, self._compile)

    def _compile(self, graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        position = len(self.cases)
        kept = copy.deepcopy(graph)
        self._keep(position, kept, example_inputs)
        compiled = as_dynamo_backend(self.compiler)(graph, example_inputs)
        ran = False

        def recording(*args: Any) -> Any:
            nonlocal ran
            if not ran:  # the values are those of the first run, not of the compilation
                ran = True
                self._keep(position, kept, args)
            return compiled(*args)

        return recording

    def _keep(self, position: int, graph: torch.fx.GraphModule, values: Sequence[Any]) -> None:
        try:
            storages, inputs = described(values)
        except NotDescribedError:
            return
        self.cases[position:] = [GraphCase(graph, storages, inputs, torch.is_grad_enabled())]


def described(
    values: Sequence[Any],
) -> tuple[tuple[StorageInput, ...], tuple[TensorInput | bool | int | float, ...]]:
    """Returns storages and inputs that rebuild `values` with their sharing; raises NotDescribedError."""
    positions: dict[int, int] = {}
    storages: list[StorageInput] = []
    inputs: list[TensorInput | bool | int | float] = []
    for number, value in enumerate(values):
        if isinstance(value, torch.SymInt):
            inputs.append(int(value))
        elif isinstance(value, (bool, int, float)):
            inputs.append(value)
        elif _is_plain(value):
            storage = value.untyped_storage()
            if storage._cdata not in positions:
                positions[storage._cdata] = len(storages)
                storages.append(_storage(value, storage))
            inputs.append(_tensor(value, positions[storage._cdata]))
        else:
            raise NotDescribedError(f"input {number} is a {type(value).__name__}")
    return tuple(storages), tuple(inputs)


def _is_plain(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return False
    plain_type = type(value) in (torch.Tensor, torch.nn.Parameter)
    plain_layout = value.layout is torch.strided and not value.is_quantized
    return plain_type and plain_layout and not (value.is_conj() or value.is_neg())


def _storage(tensor: torch.Tensor, storage: torch.UntypedStorage) -> StorageInput:
    data = None
    if storage.nbytes() <= MOST_RECORDED_BYTES:
        data = zlib.compress(bytes_of(storage).cpu().numpy().tobytes())
    return StorageInput(storage.nbytes(), tensor.dtype, str(tensor.device), data)


def _tensor(tensor: torch.Tensor, storage: int) -> TensorInput:
    return TensorInput(
        storage,
        tensor.dtype,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        tensor.requires_grad,
        tensor.is_leaf,
    )
