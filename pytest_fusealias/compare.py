"""Two observations in, findings out: one function a check, listed in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pytest_fusealias.elements import difference, storage_difference, tolerance
from pytest_fusealias.model import CHECKS, CheckResult, Finding, Outcome, Spec
from pytest_fusealias.observation import Observation, Relation

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_fusealias.observation import TensorRecord


def compare(eager: Observation, other: Observation, spec: Spec) -> dict[str, list[Finding]]:
    """Returns the findings of every check that `spec` asks for; an empty list is a pass.

    Where either side raised, results do not exist; then only what the exception left behind is compared. A backend that
    raised where eager runs is one finding, `raises`, and nothing else is meaningful.
    """
    findings: dict[str, list[Finding]] = {check: [] for check in CHECKS if check in spec.checks}
    if other.error is not None and eager.error is None:
        return findings | {"raises": check_raises(eager, other, spec)}
    failed = (
        eager.error is not None and eager.error.phase == "call"
    )  # an error in backward leaves the outputs
    for check in findings:
        if not failed or check in ("raises", "mutation", "compiled", "layout", "meta"):
            findings[check] = TABLE[check](eager, other, spec)
    return findings


def check_raises(eager: Observation, other: Observation, spec: Spec) -> list[Finding]:
    """When eager raises the other run raises too, in the same phase; the exception's class is a weak finding."""
    del spec
    a, b = eager.error, other.error
    if a is None and b is None:
        return []
    if b is None and a is not None:
        return [
            Finding("raises", a.phase, f"eager raises {a.type_name} ({a.message}); the backend runs through")
        ]
    if a is None and b is not None:
        return [
            Finding(
                "raises", b.phase, f"the backend refuses with {b.type_name} ({b.message}); eager runs through"
            )
        ]
    if a is not None and b is not None and a.type_name != b.type_name:
        text = f"eager raises {a.type_name}, the backend {b.type_name}"
        return [Finding("raises", a.phase, text, strong=False)]
    return []


def check_values(eager: Observation, other: Observation, spec: Spec) -> list[Finding]:
    """The outputs have eager's structure and, within tolerance, its values."""
    found = _structure(eager, other, spec)
    if found:
        return found
    for path, a in eager.tensors.items():
        b = other.tensors.get(path)
        if a.role == "output" and b is not None and (text := difference(a, b, spec)):
            found.append(Finding("values", path, text))
    return found


def _structure(eager: Observation, other: Observation, spec: Spec) -> list[Finding]:
    if eager.structure != other.structure or [p for p, _ in eager.leaves] != [p for p, _ in other.leaves]:
        text = f"the outputs have another structure: eager {_listed(eager)}, the backend {_listed(other)}"
        return [Finding("values", "output", text)]
    found = [
        Finding("values", p, "eager's output holds this tensor, the backend's not")
        for p in _only_in(eager, other, "output")
    ]
    found += [
        Finding("values", p, "the backend's output holds this tensor, eager's not")
        for p in _only_in(other, eager, "output")
    ]
    for (path, a), (_, b) in zip(eager.leaves, other.leaves, strict=True):
        if a != b and not _close_scalars(a, b, spec):
            found.append(Finding("values", path, f"eager returns {a}, the backend {b}"))
    return found


def _listed(observed: Observation) -> str:
    return "(" + ", ".join(f"{path}: {kind.split(':')[0]}" for path, kind in observed.leaves[:8]) + ")"


def _close_scalars(a: str, b: str, spec: Spec) -> bool:
    """Floats read from tensors (`loss.item()`) carry the tensor's rounding; float32's is the widest common one."""
    kinds = (a.split(":")[0], b.split(":")[0])
    if kinds[0] != kinds[1] or kinds[0] not in ("float", "complex"):
        return False
    x, y = (complex(v.split(":", 1)[1]) for v in (a, b))
    rtol, atol = tolerance(torch.float32, spec)
    return bool(torch.isclose(torch.tensor(y), torch.tensor(x), rtol=rtol, atol=atol, equal_nan=True))


def check_mutation(eager: Observation, other: Observation, spec: Spec) -> list[Finding]:
    """Every storage that existed before the run holds what eager's holds, and every reached tensor eager's value.

    Bytes that no operator of the control run wrote must be as they were, bit for bit; written ones agree within
    tolerance.
    """
    found = []
    for one, two in zip(eager.storages, other.storages, strict=False):
        if text := storage_difference(one, two, spec):
            found.append(Finding("mutation", one.path, text))
    stored = {f.path for f in found}
    for path, a in eager.tensors.items():
        if a.role != "input" or path in stored:
            continue
        b = other.tensors.get(path)
        if b is None:
            found.append(
                Finding("mutation", path, "eager creates this tensor during the call, the backend does not")
            )
        elif text := difference(a, b, spec):
            found.append(Finding("mutation", path, text))
    text = "the backend creates this tensor during the call, eager does not"
    found += [Finding("mutation", path, text) for path in _only_in(other, eager, "input")]
    return found + _removals("mutation", "input", eager, other)


def check_alias(eager: Observation, other: Observation, spec: Spec) -> list[Finding]:
    """The same tensors share memory, in the same way, as in eager."""
    if spec.alias == "none":
        return []
    common = eager.tensors.keys() & other.tensors.keys()
    pairs = [
        p for p in dict.fromkeys([*eager.relations, *other.relations]) if p[0] in common and p[1] in common
    ]
    found = []
    for pair in pairs:
        a, b = eager.relations.get(pair), other.relations.get(pair)
        if a != b and not (b is None and spec.alias == "no-new"):
            found.append(Finding("alias", pair[1], _alias_text(pair, a, b, eager)))
    return found


def _alias_text(pair: tuple[str, str], a: Relation | None, b: Relation | None, eager: Observation) -> str:
    role = eager.tensors[pair[0]].role
    other = pair[0] if role == "output" else f"{role} {pair[0]}"
    if a is None and b is not None:
        return f"illegal alias: shares memory with {other} ({_related(b)}); in eager they are distinct"
    if b is None and a is not None:
        return f"lost alias: in eager it shares memory with {other} ({_related(a)}); under the backend they are distinct"
    if a is not None and b is not None:
        return f"changed alias with {other}: eager {_related(a)}, the backend {_related(b)}"
    return ""


def _related(relation: Relation) -> str:
    return f"offset {relation.offset_bytes} bytes, {relation.overlap} overlap"


def check_identity(eager: Observation, other: Observation, spec: Spec) -> list[Finding]:
    """Paths that hold one object in eager hold one object; weak where the tensors share memory either way."""
    del spec
    found = []
    common = [p for p in eager.tensors if p in other.tensors]
    one, two = _first_paths(eager, common), _first_paths(other, common)
    for path in common:
        a, b = one[path], two[path]
        if a == b:
            continue
        partner = a if a != path else b
        pair = (partner, path)
        shared = all(pair in o.relations or pair[::-1] in o.relations for o in (eager, other))
        text = f"is the same object as {a}" if a != path else "is an object of its own"
        now = f"the same object as {b}" if b != path else "an object of its own"
        found.append(
            Finding("identity", path, f"in eager it {text}; under the backend it is {now}", strong=not shared)
        )
    return found


def _first_paths(observed: Observation, common: list[str]) -> dict[str, str]:
    first: dict[int, str] = {}
    return {path: first.setdefault(observed.objects[path], path) for path in common}


def check_layout(eager: Observation, other: Observation, spec: Spec) -> list[Finding]:
    """Outputs and reached tensors have eager's dtype, device, shape, strides and, into an input, offset."""
    del spec
    found = []
    for a, b in _pairs(eager, other, ("output", "input")):
        found += _attributes("layout", a, b, ("dtype", "device", "layout", "shape"))
        if a.shape == b.shape and a.stride != b.stride:
            strong = _significant(a) != _significant(b)
            found.append(Finding("layout", a.path, _said("strides", a.stride, b.stride), strong=strong))
        if (
            a.storage_offset != b.storage_offset
            and _touches_input(a.path, eager)
            and _touches_input(a.path, other)
        ):
            found.append(
                Finding("layout", a.path, _said("storage offset", a.storage_offset, b.storage_offset))
            )
    return found


def _significant(record: TensorRecord) -> tuple[int, ...]:
    """Strides that address anything: those of dims larger than 1 of tensors that are not empty."""
    if 0 in record.shape:
        return ()
    return tuple(stride for size, stride in zip(record.shape, record.stride, strict=True) if size > 1)


def _touches_input(path: str, observed: Observation) -> bool:
    return any(
        path in pair and observed.tensors[pair[0] if pair[1] == path else pair[1]].role == "input"
        for pair in observed.relations
    )


def check_meta(eager: Observation, other: Observation, spec: Spec) -> list[Finding]:
    """Autograd and lazy-bit facts; whether a version counter moved is weak, and counts are never compared."""
    del spec
    found = []
    for a, b in _pairs(eager, other, ("output", "input")):
        found += _attributes("meta", a, b, ("requires_grad", "is_leaf", "has_grad_fn", "is_conj", "is_neg"))
        if a.role == "output":
            found += _attributes("meta", a, b, ("type_name",))
        if None not in (a.version_bumped, b.version_bumped) and a.version_bumped != b.version_bumped:
            text = _said("version counter moved", a.version_bumped, b.version_bumped)
            found.append(Finding("meta", a.path, text, strong=False))
    return found


def check_grads(eager: Observation, other: Observation, spec: Spec) -> list[Finding]:
    """The same tensors have a gradient, with eager's values; its strides are weak."""
    found = []
    for path, a in eager.tensors.items():
        if a.role != "grad":
            continue
        b = other.tensors.get(path)
        if b is None:
            found.append(Finding("grads", path, "eager has a gradient, the backend has None"))
            continue
        found += _attributes("grads", a, b, ("dtype", "device", "layout", "shape", "requires_grad"))
        if text := difference(a, b, spec):
            found.append(Finding("grads", path, text))
        if a.strided and b.strided and a.shape == b.shape and _significant(a) != _significant(b):
            found.append(Finding("grads", path, _said("strides", a.stride, b.stride), strong=False))
    text = "eager has None, the backend has a gradient"
    found += [Finding("grads", path, text) for path in _only_in(other, eager, "grad")]
    return found + _removals("grads", "grad", eager, other)


def check_rng(eager: Observation, other: Observation, spec: Spec) -> list[Finding]:
    """The random generators stand where eager leaves them."""
    if spec.rng == "ignore":
        return []
    return [
        Finding(
            "rng", device, "the generator stands elsewhere than after eager: other random numbers were drawn"
        )
        for device, state in eager.rng_state.items()
        if other.rng_state.get(device) != state
    ]


def check_compiled(eager: Observation, other: Observation, spec: Spec) -> list[Finding]:
    """Something was compiled and ran; otherwise eager was compared with itself."""
    del eager
    done = other.compilation
    if spec.allow_fallback or done is None or other.error is not None:
        return []  # a program that raises may do so while it is traced
    if done.is_same_function:
        return [Finding("compiled", "program", "the compiler returned the function that it was given")]
    if done.graphs == 0:
        return [Finding("compiled", "program", "no graph was compiled: the program ran in eager")]
    if done.executions == 0:
        return [Finding("compiled", "program", f"{done.graphs} graphs were compiled, but none of them ran")]
    return []


def _pairs(
    eager: Observation, other: Observation, roles: tuple[str, ...]
) -> list[tuple[TensorRecord, TensorRecord]]:
    return [(a, other.tensors[p]) for p, a in eager.tensors.items() if a.role in roles and p in other.tensors]


def _attributes(check: str, a: TensorRecord, b: TensorRecord, names: tuple[str, ...]) -> list[Finding]:
    pairs = [(name, getattr(a, name), getattr(b, name)) for name in names]
    return [Finding(check, a.path, _said(name, x, y)) for name, x, y in pairs if x != y]


def _removals(check: str, role: str, eager: Observation, other: Observation) -> list[Finding]:
    """Tensors that one run takes away from where they were, such as a gradient that is set to None."""
    both = eager.tensors.keys() & other.tensors.keys()
    odd = [
        p for p in eager.tensors if p in (eager.gone ^ other.gone) & both and eager.tensors[p].role == role
    ]
    return [
        Finding(check, p, _said("still there after the call", p not in eager.gone, p not in other.gone))
        for p in odd
    ]


def _only_in(one: Observation, two: Observation, role: str) -> list[str]:
    return [path for path, record in one.tensors.items() if record.role == role and path not in two.tensors]


def _said(what: str, eager: object, backend: object) -> str:
    return f"{what}: eager {eager}, the backend {backend}"


TABLE: dict[str, Callable[[Observation, Observation, Spec], list[Finding]]] = {
    "raises": check_raises,
    "values": check_values,
    "mutation": check_mutation,
    "alias": check_alias,
    "identity": check_identity,
    "layout": check_layout,
    "meta": check_meta,
    "grads": check_grads,
    "rng": check_rng,
    "compiled": check_compiled,
}


def decide(check: str, findings: list[Finding], spec: Spec, backend: str) -> CheckResult:
    """Turns findings into an outcome; a failure that `xfail_checks` names passes, and its absence fails."""
    strong = any(f.strong for f in findings)
    reason = spec.xfail_checks.get(f"{backend}:{check}", spec.xfail_checks.get(check))
    if reason is None:
        return CheckResult(check, Outcome.FAIL if strong else Outcome.PASS, tuple(findings))
    if strong:
        return CheckResult(check, Outcome.PASS, tuple(findings), reason, expected_failure=True)
    unexpected = Finding(
        check, "program", f"passes, but xfail_checks expects it to fail ({reason}); remove the entry"
    )
    return CheckResult(check, Outcome.FAIL, (unexpected,), reason, expected_failure=True)
