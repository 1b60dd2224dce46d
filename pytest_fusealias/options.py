"""Command line options, their ini twins, and the frozen Settings that the rest of the plugin reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_fusealias.bench_options import OPTIONS, BenchOptionError, BenchOptions, bench_options

if TYPE_CHECKING:
    import pytest

DEFAULT_BACKEND = "fusion_core"

# (name, command line keywords, ini type, ini default, help). The command line default is None, so that the ini counts.
_OPTIONS: tuple[tuple[str, dict[str, Any], Any, Any, str], ...] = (
    (
        "backend",
        {"action": "append", "metavar": "NAME"},
        "args",
        [],
        "backend to compare with eager (repeatable); the command line replaces the markers' backends",
    ),
    ("device", {"metavar": "DEVICE"}, "string", "cpu", "device that `inputs` builds on"),
    ("dtype", {"metavar": "DTYPE"}, "string", "", "dtype that `inputs` builds with, such as bfloat16"),
    ("seed", {"type": int, "metavar": "N"}, "string", "0", "seed of every build and run"),
    (
        "strict",
        {"action": "store_true"},
        "bool",
        False,
        "fail also where a check was NOT-MEASURED or has weak findings",
    ),
    (
        "memory-timeline",
        {"metavar": "DIR"},
        "string",
        "",
        "measure the memory of every marked test and write an SVG of eager above compiled to DIR",
    ),
    (
        "repro-dir",
        {"metavar": "DIR"},
        "string",
        "",
        "write a script to DIR for every failed check, which shows the failure without pytest",
    ),
    (
        "minify",
        {"action": "store_true"},
        "bool",
        False,
        "with --fusion-repro-dir: reduce graph and inputs to the smallest for which the check still fails",
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What command line and ini say. `command_line_backends` is None unless --fusion-backend was given.

    `memory_timeline` is the folder for timelines, `repro_folder` the one for scripts of failures; both are absolute.
    """

    command_line_backends: tuple[str, ...] | None
    ini_backends: tuple[str, ...]
    device: str
    dtype: str | None
    seed: int
    strict: bool
    memory_timeline: Path | None = None
    repro_folder: Path | None = None
    minify: bool = False
    bench: BenchOptions = field(default_factory=BenchOptions)

    @property
    def default_backends(self) -> tuple[str, ...]:
        """Backends for a marker that names none."""
        return self.command_line_backends or self.ini_backends or (DEFAULT_BACKEND,)


def add_options(parser: pytest.Parser) -> None:
    """Declares `--fusion-*` and `fusion_*`."""
    group = parser.getgroup("fusealias", "compiled equals eager (fusealias)")
    for name, keywords, ini_type, ini_default, text in (*_OPTIONS, *OPTIONS):
        dest = f"fusion_{name.replace('-', '_')}"
        group.addoption(f"--fusion-{name}", dest=dest, default=None, help=text, **keywords)
        parser.addini(dest, text.replace("%%", "%"), type=ini_type, default=ini_default)


def settings_of(config: pytest.Config) -> Settings:
    """Returns the settings; raises pytest.UsageError where a value is not of its type."""
    backends = config.getoption("fusion_backend")
    repro_folder, minify = _folder(config, "repro-dir"), bool(_value(config, "minify"))
    if minify and repro_folder is None:
        raise _usage_error("--fusion-minify: say with --fusion-repro-dir=DIR where the smallest script goes")
    return Settings(
        command_line_backends=tuple(backends) if backends else None,
        ini_backends=tuple(config.getini("fusion_backend")),
        device=_value(config, "device"),
        dtype=_value(config, "dtype") or None,
        seed=_integer(_value(config, "seed")),
        strict=bool(_value(config, "strict")),
        memory_timeline=_folder(config, "memory-timeline"),
        repro_folder=repro_folder,
        minify=minify,
        bench=_bench(config),
    )


def _value(config: pytest.Config, name: str) -> Any:
    given = config.getoption(f"fusion_{name}")
    return config.getini(f"fusion_{name}") if given is None else given


def _bench(config: pytest.Config) -> BenchOptions:
    try:
        return bench_options(partial(_value, config), config.invocation_params.dir, config.rootpath)
    except BenchOptionError as error:
        raise _usage_error(str(error)) from None


def _folder(config: pytest.Config, name: str) -> Path | None:
    value = _value(config, name.replace("-", "_"))
    if not value:
        return None
    folder: Path = config.invocation_params.dir / value
    if folder.exists() and not folder.is_dir():
        raise _usage_error(f"--fusion-{name}: expected a folder, found the file {folder}")
    return folder


def _integer(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise _usage_error(f"fusion_seed: expected an integer, found {value!r}") from None


def _usage_error(text: str) -> Exception:
    import pytest

    return pytest.UsageError(text)
