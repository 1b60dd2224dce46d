"""The marker `fusion_equiv`: its arguments, their validation, and the Spec that they make."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pytest_fusealias.model import BOUNDED, CHECKS, Spec
from pytest_fusealias.units import FORMS, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pytest

    from pytest_fusealias.options import Settings

NAME = "fusion_equiv"
HELP = f"{NAME}(backend=, inputs=, ...): compile the test's program and require that nothing observable differs from eager"
# Fields of a Spec that are no marker arguments: the session's settings give them.
_NOT_ARGUMENTS = frozenset({"seed", "keeps_timeline"})
ARGUMENTS = tuple(name for name in Spec.__slots__ if name not in _NOT_ARGUMENTS)


class MarkerError(ValueError):
    """An argument of the marker, or of `fusion_check`, that cannot be meant."""


def arguments_of(marks: Iterable[pytest.Mark]) -> dict[str, Any]:
    """Returns the merged keyword arguments of all `fusion_equiv` marks, the closest mark winning."""
    merged: dict[str, Any] = {}
    for mark in reversed(list(marks)):
        if mark.args:
            raise MarkerError(f"takes keyword arguments only, found {mark.args!r}")
        merged |= mark.kwargs
    validate(merged)
    _validate_together(merged)
    return merged


def _validate_together(arguments: Mapping[str, Any]) -> None:
    checks = tuple(arguments.get("checks", CHECKS))
    for key in arguments.get("xfail_checks", {}):
        if key.split(":")[-1] not in (*checks, *BOUNDED):
            raise MarkerError(f"xfail_checks names {key!r}, which checks={checks!r} leaves out")
    to_dtype(arguments.get("dtype"))
    inputs = arguments.get("inputs")
    if inputs is not None:
        _require_factory(inputs)


def _require_factory(inputs: Callable[..., Any]) -> None:
    try:
        inspect.signature(inputs).bind(device="cpu", dtype=None, seed=0)
    except TypeError as error:
        expected = "a function inputs(device=, dtype=, seed=) that returns the positional arguments"
        raise MarkerError(
            f"inputs={getattr(inputs, '__name__', inputs)!r}: expected {expected}; {error}"
        ) from None


def validate(arguments: Mapping[str, Any]) -> None:
    """Raises MarkerError naming the first argument that is unknown or of a wrong kind."""
    for name, value in arguments.items():
        if name not in ARGUMENTS:
            import difflib

            near = difflib.get_close_matches(name, ARGUMENTS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise MarkerError(f"unknown argument {name!r}{hint} Known: {', '.join(ARGUMENTS)}")
        test, expected = _RULES.get(name, (_anything, ""))
        if not test(value):
            raise MarkerError(f"{name}={value!r}: expected {expected}")


def make_spec(arguments: Mapping[str, Any], settings: Settings, backend: object, device: str) -> Spec:
    """Returns the Spec for one backend; `arguments` are validated ones, `device` is used where they name none."""
    values = dict(arguments)
    values["backend"] = backend
    values["device"] = device if values.get("device") is None else values["device"]
    values["dtype"] = to_dtype(settings.dtype if values.get("dtype") is None else values["dtype"])
    values["strict"] = bool(values.get("strict", False)) or settings.strict
    values["seed"] = settings.seed
    values["keeps_timeline"] = settings.memory_timeline is not None
    for name in ("checks", "variations"):
        if name in values:
            values[name] = tuple(values[name])
    return Spec(**values)


def to_dtype(value: object) -> Any:
    """Returns the torch.dtype of a name (`bfloat16`, `torch.bfloat16`); None and dtypes pass through."""
    if value is None:
        return None
    import torch

    if isinstance(value, torch.dtype):
        return value
    found = getattr(torch, str(value).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise MarkerError(f"dtype={value!r}: expected the name of a torch dtype, such as float32 or bfloat16")
    return found


def program_parameters(
    function: Callable[..., Any], fixtures: frozenset[str], given: object
) -> tuple[str, ...]:
    """Returns the parameters of a body-form test that `inputs` fills: those without default that nothing else fills."""
    if given is not None:
        names = tuple(given) if isinstance(given, (list, tuple)) else ()
        return tuple(str(name) for name in names)
    names = ()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise MarkerError(
                f"parameter {parameter}: *args, **kwargs and positional-only parameters cannot be filled"
            )
        if parameter.default is parameter.empty and parameter.name not in fixtures:
            names += (parameter.name,)
    return names


def _anything(_value: object) -> bool:
    return True


def _is_flag(value: object) -> bool:
    return value is None or isinstance(value, bool)


def _is_amount(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0)


def _is_size(value: object) -> bool:
    try:
        return value is None or parse_bytes(value) >= 0
    except ValueError:
        return False


def _is_known_checks(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(v in CHECKS for v in value)


def _is_reasons(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return all(
        str(k).split(":")[-1] in (*CHECKS, *BOUNDED) and isinstance(v, str) and v for k, v in value.items()
    )


def _is_backend(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_is_backend(v) for v in value)
    return value is None or isinstance(value, str) or callable(value)


def _is_exception(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(_is_exception(v) for v in value)
    return value is None or (isinstance(value, type) and issubclass(value, BaseException))


_FLAG = (_is_flag, "True, False or None")
_AMOUNT = (_is_amount, "a number that is not negative")
_RULES: dict[str, tuple[Callable[[object], bool], str]] = {
    "backend": (_is_backend, "a name, a callable, or a list of these"),
    "inputs": (callable, "a function inputs(device=, dtype=, seed=) that returns the positional arguments"),
    "args": (lambda v: v is None or isinstance(v, (list, tuple)), "a tuple of parameter names"),
    "raises": (_is_exception, "an exception class or a tuple of them"),
    "train": _FLAG,
    "dynamic": _FLAG,
    "allow_fallback": (lambda v: isinstance(v, bool), "True or False"),
    "strict": (lambda v: isinstance(v, bool), "True or False"),
    "canary": (lambda v: isinstance(v, bool), "True or False"),
    "rtol": _AMOUNT,
    "atol": _AMOUNT,
    "checks": (_is_known_checks, f"a tuple of check names out of {', '.join(CHECKS)}"),
    "xfail_checks": (
        _is_reasons,
        f"a dict from check (or backend:check) to reason; checks are {', '.join((*CHECKS, *BOUNDED))}",
    ),
    "alias": (lambda v: v in ("eager", "no-new", "none"), "'eager', 'no-new' or 'none'"),
    "rng": (lambda v: v in ("eager", "ignore"), "'eager' or 'ignore'"),
    "variations": (lambda v: isinstance(v, (list, tuple)), "a list of variation names"),
    "max_time_ratio": _AMOUNT,
    "max_compile_s": _AMOUNT,
    "max_peak_ratio": _AMOUNT,
    "max_peak_delta": (_is_size, FORMS),
    "max_retained": (_is_size, FORMS),
    "min_regions": _AMOUNT,
    "max_graph_breaks": _AMOUNT,
    "max_recompiles": _AMOUNT,
}
