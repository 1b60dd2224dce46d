"""Run one arm of a program and record everything that can be seen of it."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from fusion_core import reach
from fusion_core.overlap import bytes_of
from pytest_fusealias.build import Program, seed_everything
from pytest_fusealias.compilers import Compiled, Compiler, compile_session
from pytest_fusealias.observation import ErrorRecord, Observation, StorageRecord, TensorRecord
from pytest_fusealias.relation import relations
from pytest_fusealias.watch import Watch, has_storage, id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_fusealias.model import Spec
    from pytest_fusealias.observation import Compilation


@dataclass(frozen=True, slots=True)
class _Before:
    """The reached tensors before the run. Storages are held, so that no address is used twice."""

    tensors: dict[str, torch.Tensor]
    versions: dict[str, int | None]
    storages: list[tuple[str, torch.dtype, torch.UntypedStorage, torch.Tensor]]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Ignores warnings, as in every arm: under `-W error` they would raise in one only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def run_eager(program: Program, spec: Spec) -> Observation:
    """Runs the program as it is."""
    with quiet():
        return _observe(program, program.call, spec, watch=None)


def run_control(program: Program, spec: Spec) -> Observation:
    """Runs the program as it is under a dispatch mode that notes writes and spoils uninitialised memory."""
    named = [r.tensor for r in reach.walk(program.roots())]
    with quiet():
        return _observe(program, program.call, spec, watch=Watch(named))


def run_compiled(program: Program, spec: Spec, compiler: Compiler) -> Observation:
    """Compiles the program's function and runs the program with it."""
    with compile_session(compiler, eager_rng=spec.rng == "eager"):
        try:
            compiled = Compiled(compiler, program.call, spec.dynamic)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises while compiling is the result
            failed, reason = _error(error, "compile"), error

            def raise_again(*_args: Any, **_kwargs: Any) -> Any:
                raise reason

            observed = _observe(program, raise_again, spec, watch=None)
            return dataclasses.replace(observed, error=failed)
        return _observe(program, compiled.call, spec, watch=None, count=compiled.compilation)


def _observe(
    program: Program,
    call: Callable[..., Any],
    spec: Spec,
    *,
    watch: Watch | None,
    count: Callable[[], Compilation] | None = None,
) -> Observation:
    before = _look_before(program)
    seed_everything(spec.seed)
    with torch.set_grad_enabled(torch.is_grad_enabled()):  # a program may leave it switched
        result, error = execute(program, call, spec, watch)
    for device in {t.device for t in before.tensors.values() if t.device.type == "cuda"}:
        torch.cuda.synchronize(device)
    rng_state = _rng_state()
    leaves, structure, outputs = _output_leaves(result)
    after = {r.path: r.tensor for r in reach.walk(program.roots())}
    everything = {**before.tensors, **after, **outputs}
    return Observation(
        tensors={path: _record(path, t, before, outputs) for path, t in everything.items()},
        gone=frozenset(before.tensors.keys() - after.keys()),
        structure=structure,
        leaves=leaves,
        storages=tuple(_storage_record(*entry, watch=watch) for entry in before.storages),
        relations=relations(everything),
        objects=_objects(everything),
        rng_state=rng_state,
        error=error,
        compilation=count() if count is not None else None,
        unnamed_writes=tuple(dict.fromkeys(watch.unnamed_writes)) if watch else (),
    )


def _look_before(program: Program) -> _Before:
    tensors = {r.path: r.tensor for r in reach.walk(program.roots())}
    storages: dict[int, tuple[str, torch.dtype, torch.UntypedStorage, torch.Tensor]] = {}
    for path, tensor in tensors.items():
        if has_storage(tensor):
            storage = tensor.untyped_storage()
            known = storages.get(id_of(storage))
            dtype = torch.uint8 if tensor.is_quantized else tensor.dtype
            if known is None:
                storages[id_of(storage)] = (path, dtype, storage, bytes_of(storage).clone())
            elif dtype.is_floating_point and not known[1].is_floating_point:
                # tolerance beats bits, where both view the storage
                storages[id_of(storage)] = (known[0], dtype, *known[2:])
    return _Before(tensors, {path: _version(t) for path, t in tensors.items()}, list(storages.values()))


def execute(
    program: Program, call: Callable[..., Any], spec: Spec, watch: Watch | None = None
) -> tuple[Any, ErrorRecord | None]:
    """Runs the program with `call` for its function, and backward where the spec wants it; returns result and error."""
    phase, result = "call", None
    try:
        with watch if watch is not None else contextlib.nullcontext():
            result = program.run(call)
            phase = "backward"
            if spec.train or (spec.train is None and program.drive is None):
                _backward(result, spec)
    except Exception as error:  # noqa: BLE001 - an exception of the program is an observation
        return result, _error(error, phase)
    return result, None


def _backward(result: Any, spec: Spec) -> None:
    """Runs backward with random cotangents: a constant one hides transposed and permuted gradients."""
    roots = roots_of(result)
    if roots:
        torch.autograd.backward(roots, cotangents_of(roots, spec.seed))
    elif spec.train:
        raise ValueError("train=True, but no output requires grad")


def roots_of(result: Any) -> list[torch.Tensor]:
    """Returns the tensors of a result that require grad, as often as they are returned.

    A backend may return one tensor where eager returns two equal views: both get the cotangents of both places.
    """
    leaves = [result] if isinstance(result, torch.Tensor) else pytree.tree_leaves(result)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]


def cotangents_of(roots: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Returns random cotangents, the same for the same shapes and seed."""
    generator = torch.Generator().manual_seed(seed + 1)
    made = []
    for root in roots:
        real = torch.complex64 if root.dtype.is_complex else torch.float32
        made.append(torch.randn(root.shape, generator=generator, dtype=real).to(root.device, root.dtype))
    return made


def _error(error: Exception, phase: str) -> ErrorRecord:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ErrorRecord(phase, type(error).__name__, " ".join(lines[:2])[:300])


def _output_leaves(result: Any) -> tuple[tuple[tuple[str, str], ...], str, dict[str, torch.Tensor]]:
    """Returns (path, kind) of each leaf of the result, its container structure, and its tensors by path."""
    leaves: list[tuple[str, str]] = []
    tensors: dict[str, torch.Tensor] = {}
    opened = pytree.tree_map(_opened, result)
    for key, leaf in pytree.tree_flatten_with_path(opened)[0]:
        path = f"output{pytree.keystr(key)}"
        if isinstance(leaf, torch.Tensor):
            leaves.append((path, "tensor"))
            tensors[path] = leaf
        elif isinstance(leaf, _COMPARED):
            leaves.append((path, f"{type(leaf).__name__}:{leaf!r}"))
        else:
            leaves.append((path, type(leaf).__name__))
            tensors |= {r.path: r.tensor for r in reach.walk({path: leaf})}
    return tuple(leaves), str(pytree.tree_structure(opened)), tensors


_COMPARED = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    enum.Enum,
)


def _opened(leaf: Any) -> Any:
    """Makes the parts of a dataclass, and the value of a numpy scalar, visible to the comparison."""
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        parts = {f.name: getattr(leaf, f.name, None) for f in dataclasses.fields(leaf)}
        return {type(leaf).__name__: pytree.tree_map(_opened, parts)}
    if type(leaf).__module__ == "numpy" and hasattr(leaf, "item") and not hasattr(leaf, "__len__"):
        return leaf.item()
    return leaf


def _record(
    path: str, tensor: torch.Tensor, before: _Before, outputs: dict[str, torch.Tensor]
) -> TensorRecord:
    strided = tensor.layout is torch.strided
    bumped = None
    if path in before.tensors and before.tensors[path] is tensor and before.versions[path] is not None:
        bumped = _version(tensor) != before.versions[path]
    plain = tensor.detach()
    return TensorRecord(
        path=path,
        type_name=type(tensor).__name__,
        role="output" if path in outputs else "grad" if path.endswith(".grad") else "input",
        value=plain.resolve_conj().resolve_neg().clone() if strided else plain.clone(),
        dtype=str(tensor.dtype),
        device=str(tensor.device),
        layout=str(tensor.layout),
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()) if strided else (),
        storage_offset=int(tensor.storage_offset()) if strided else 0,
        requires_grad=tensor.requires_grad,
        is_leaf=tensor.is_leaf,
        has_grad_fn=tensor.grad_fn is not None,
        is_conj=tensor.is_conj(),
        is_neg=tensor.is_neg(),
        version_bumped=bumped,
        strided=strided,
    )


def _storage_record(
    path: str, dtype: torch.dtype, storage: torch.UntypedStorage, before: torch.Tensor, *, watch: Watch | None
) -> StorageRecord:
    written = watch.written_bytes(storage) if watch is not None else None
    return StorageRecord(path, dtype, before, bytes_of(storage).clone(), written)


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _objects(tensors: dict[str, torch.Tensor]) -> dict[str, int]:
    """Returns for each path the position of the first path with the same object: a partition that two arms share."""
    first: dict[int, int] = {}
    return {path: first.setdefault(id(t), position) for position, (path, t) in enumerate(tensors.items())}


def _rng_state() -> dict[str, bytes]:
    states = {"cpu": torch.get_rng_state().numpy().tobytes()}
    if torch.cuda.is_available():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"cuda:{index}"] = state.numpy().tobytes()
    return states
