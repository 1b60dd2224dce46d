"""Count false alarms over operators: every finding of the plugin where a correct backend ran one.

    python benchmarks/false_alarms.py --ops 150 --backends aot_eager,inductor --out docs/results/false_alarms.md

Takes torch's own operator database, the first sample of each operator in float32, as a function and in place where the
operator has an in-place form.
"""

import argparse
import collections
import datetime as dt
import platform
import warnings
from pathlib import Path

import torch
from torch.testing._internal.common_methods_invocations import op_db

from pytest_fusealias.build import Program, ProgramError
from pytest_fusealias.check import check
from pytest_fusealias.model import Spec

# Operators whose results are not determined by their inputs, or that Dynamo cannot capture at all.
SKIPPED = frozenset(
    {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted"}
)


def programs(op):
    """Yields (name, program factory) of the operator's forms."""

    def sample():
        torch.manual_seed(0)
        return next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=False)))

    def functional():
        s = sample()
        return Program(op.get_op(), (s.input, *s.args), kwargs=s.kwargs)

    def in_place():
        s = sample()
        return Program(op.get_inplace(), (s.input, *s.args), kwargs=s.kwargs)

    yield op.formatted_name, functional
    if op.get_inplace() is not None:
        yield f"{op.formatted_name} (in place)", in_place


def run(count, backends):
    """Yields (backend, name, verdict or error text)."""
    ops = [o for o in op_db if torch.float32 in o.supported_dtypes("cpu") and o.name not in SKIPPED]
    step = max(1, len(ops) // count)
    for op in ops[::step][:count]:
        for name, factory in programs(op):
            for backend in backends:
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        yield backend, name, check(factory, Spec(backend=backend, allow_fallback=True))
                except ProgramError as error:
                    yield backend, name, f"not judged: {error}"


def page(results, backends, count, command):
    """Yields the markdown page."""
    yield "# Findings over operators"
    yield ""
    yield (
        f"{dt.date.today().isoformat()}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()} CPU. Command: `{command}`"
    )
    yield ""
    for backend in backends:
        mine = [(n, v) for b, n, v in results if b == backend]
        judged = [(n, v) for n, v in mine if not isinstance(v, str)]
        strong = [
            (n, c, f) for n, v in judged if not v.refused for c in v.failures for f in c.findings if f.strong
        ]
        compiled = [v for _, v in judged if v.graphs]
        refused = [(n, f) for n, v in judged if v.refused for f in v["raises"].findings]
        weak = collections.Counter(f"{f.check}: {f.text.split(':')[0]}" for _, v in judged for f in v.weak)
        yield f"## {backend}"
        yield ""
        yield (
            f"{count} operators, {len(mine)} programs, {len(judged)} judged, "
            f"{len(compiled)} of them compiled, {len(strong)} strong findings, "
            f"{weak.total()} weak, {len(refused)} refused by the backend"
        )
        yield ""
        yield from (f"* strong: {name}: {c.check}: {f.path}: {f.text}" for name, c, f in strong)
        yield from (f"* refused: {name}: {f.text}" for name, f in refused)
        yield from (f"* weak x{n}: {text}" for text, n in weak.most_common())
        yield from (f"* {name}: {v}" for name, v in mine if isinstance(v, str))
        yield ""


def main():
    """Runs and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=150)
    parser.add_argument("--backends", default="aot_eager,inductor")
    parser.add_argument("--out", default="docs/results/false_alarms.md")
    given = parser.parse_args()
    backends = given.backends.split(",")
    results = list(run(given.ops, backends))
    command = f"python benchmarks/false_alarms.py --ops {given.ops} --backends {given.backends}"
    text = "\n".join(page(results, backends, given.ops, command))
    Path(given.out).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
