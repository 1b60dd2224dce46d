"""The options of `--fusion-bench`, their ini twins, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_fusealias.baseline.expression import ExpressionError, Limit, parse_limit
from pytest_fusealias.baseline.storage import (
    DEFAULT_NAME,
    NAME,
    StorageError,
    require_file_place,
    require_folder_place,
)
from pytest_fusealias.timing import Budget

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS = tuple(
    "backend eager compiled ratio host compile peak regions kernels recompiles change outcome".split()
)
SORTS = ("name", "eager", "compiled", "ratio", "compile", "peak")
GROUPS = ("none", "file", "function", "backend")
_FLAG: dict[str, Any] = {"action": "store_true"}

# (name, command line keywords, ini type, ini default, help); as in options.py the command line default is None.
OPTIONS: tuple[tuple[str, dict[str, Any], Any, Any, str], ...] = (
    (
        "bench",
        _FLAG,
        "bool",
        False,
        "measure time, compilation and memory of every marked test; print a table",
    ),
    ("bench-only", _FLAG, "bool", False, "run only tests that are measured, and measure them"),
    ("bench-skip", _FLAG, "bool", False, "time nothing: bounds on time are NOT-MEASURED"),
    (
        "bench-save",
        {"nargs": "?", "const": DEFAULT_NAME, "metavar": "NAME"},
        "string",
        "",
        f"save the measurements as the next run of that name (default {DEFAULT_NAME})",
    ),
    (
        "bench-compare",
        {"nargs": "?", "const": DEFAULT_NAME, "metavar": "NAME"},
        "string",
        "",
        f"compare with the latest saved run of that name (default {DEFAULT_NAME}), or with the file of that path",
    ),
    (
        "bench-compare-fail",
        {"action": "append", "metavar": "EXPR"},
        "args",
        [],
        "fail a test that exceeds its baseline, such as time:10%%+50us (both), ratio:5%%, peak:0%%; repeatable",
    ),
    ("bench-json", {"metavar": "PATH"}, "string", "", "write the measurements to a file"),
    (
        "bench-storage",
        {"metavar": "DIR"},
        "string",
        ".fusealias",
        "folder of saved runs (default .fusealias)",
    ),
    (
        "bench-max-time",
        {"metavar": "SECONDS"},
        "string",
        "3",
        "what timing one test may cost (default 3 seconds)",
    ),
    (
        "bench-min-pairs",
        {"metavar": "N"},
        "string",
        "",
        "least number of ABBA quads of a test (default 10; with --fusion-bench 30)",
    ),
    (
        "bench-columns",
        {"metavar": "LIST"},
        "string",
        "",
        f"columns of the table, with commas between: {', '.join(COLUMNS)}",
    ),
    ("bench-sort", {"metavar": "COLUMN"}, "string", "name", f"sort the table by {', '.join(SORTS)}"),
    (
        "bench-group-by",
        {"metavar": "GROUP"},
        "string",
        "none",
        f"a table for each {', '.join(GROUPS[1:])}, or param:NAME",
    ),
    ("bench-cache", {"metavar": "STATE"}, "string", "warm", "L2 cache on CUDA: warm (default) or cold"),
    (
        "bench-threads",
        {"metavar": "N"},
        "string",
        "1",
        "intra-op threads while timing on the CPU (default 1)",
    ),
    ("report", {"metavar": "PATH"}, "string", "", "write an HTML report, in one file that needs no network"),
    (
        "github-summary",
        {"nargs": "?", "const": "auto", "metavar": "PATH"},
        "string",
        "",
        "append the tables to GitHub's step summary (or to a file), and annotate failures",
    ),
)


class BenchOptionError(ValueError):
    """A value of an option that cannot be meant."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What command line and ini say about measuring; paths are absolute, None where nothing shall be written."""

    budget: Budget = field(default_factory=Budget)
    only: bool = False
    save: str | None = None
    compare: str | None = None
    limits: tuple[Limit, ...] = ()
    json: Path | None = None
    storage: Path = Path(".fusealias")
    columns: tuple[str, ...] = COLUMNS
    sort: str = "name"
    group_by: str = "none"
    report: Path | None = None
    github_summary: str | None = None

    @property
    def measures(self) -> bool:
        """True where every marked test is measured."""
        return self.budget.everything


def bench_options(value: Callable[[str], Any], base: Path, rootdir: Path) -> BenchOptions:
    """Returns the options; `value` gives that of a name without prefix. Raises BenchOptionError."""
    only, skip = bool(value("bench_only")), bool(value("bench_skip"))
    if only and skip:
        raise BenchOptionError("--fusion-bench-only and --fusion-bench-skip exclude each other")
    save, compare = _run_name("save", value("bench_save")), _compared(value("bench_compare"))
    limits = tuple(_limit(text) for text in value("bench_compare_fail"))
    if limits and compare is None:
        raise BenchOptionError("--fusion-bench-compare-fail needs --fusion-bench-compare[=NAME]")
    json = _file(base, "bench-json", value("bench_json"))
    wanted = bool(value("bench")) or only or any((save, compare, json))
    if wanted and skip:
        raise BenchOptionError("--fusion-bench-skip contradicts the options that measure")
    options = BenchOptions(
        budget=_budget(value, measures=wanted, skip=skip),
        only=only,
        save=save,
        compare=compare,
        limits=limits,
        json=json,
        storage=rootdir / str(value("bench_storage")),
        columns=_columns(value("bench_columns")),
        sort=_choice("bench-sort", value("bench_sort"), SORTS),
        group_by=_group(str(value("bench_group_by"))),
        report=_file(base, "report", value("report")),
        github_summary=str(value("github_summary")) or None,
    )
    if save is not None:
        _place("bench-storage", require_folder_place, options.storage / "run.json")
    return options


def _budget(value: Callable[[str], Any], *, measures: bool, skip: bool) -> Budget:
    pairs = value("bench_min_pairs")
    return Budget(
        seconds=_number("bench-max-time", value("bench_max_time"), float),
        least_quads=_number("bench-min-pairs", pairs, int) if pairs else 30 if measures else 10,
        threads=_number("bench-threads", value("bench_threads"), int),
        cache=_choice("bench-cache", value("bench_cache"), ("warm", "cold")),
        cold_compile=measures,
        everything=measures,
        skipped=skip,
    )


def _number(name: str, text: object, kind: Callable[[str], Any]) -> Any:
    try:
        number = kind(str(text))
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        raise BenchOptionError(f"--fusion-{name}: expected a number above 0, found {text!r}")
    return number


def _choice(name: str, value: object, known: tuple[str, ...]) -> str:
    if value not in known:
        raise BenchOptionError(f"--fusion-{name}: expected one of {', '.join(known)}; found {value!r}")
    return str(value)


def _group(value: str) -> str:
    if value.startswith("param:") and value != "param:":
        return value
    return _choice("bench-group-by", value, (*GROUPS, "param:NAME"))


def _columns(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",")) if value else COLUMNS
    for name in names:
        _choice("bench-columns", name, COLUMNS)
    return names


def _run_name(option: str, value: str) -> str | None:
    if not value:
        return None
    if not NAME.fullmatch(value):
        raise BenchOptionError(
            f"--fusion-bench-{option}: expected a name of letters, digits, '.', '_' and '-'; found {value!r} "
            f"(if that is a path of tests, write --fusion-bench-{option}=NAME before it)"
        )
    return value


def _compared(value: str) -> str | None:
    if value and ("/" in value or value.endswith(".json")):
        if not value.endswith(".json"):
            _run_name("compare", value)  # a path of tests that the option has swallowed
        return value
    return _run_name("compare", value)


def _limit(text: str) -> Limit:
    try:
        return parse_limit(text)
    except ExpressionError as error:
        raise BenchOptionError(f"--fusion-bench-compare-fail: {error}") from None


def _file(base: Path, option: str, value: str) -> Path | None:
    if not value:
        return None
    path = base / value
    _place(option, require_file_place, path)
    return path


def _place(option: str, require: Callable[[Path], None], path: Path) -> None:
    try:
        require(path if require is require_file_place else path.parent)
    except StorageError as error:
        raise BenchOptionError(f"--fusion-{option}: {error}") from None
