"""Programs out of torch's operator database: each entry, dtype and form, its samples in chunks that compile together."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from pytest_fusealias.build import Program

CHUNK = 12
FORMS = ("call", "train", "in_place", "out")
# Results are not determined by the inputs, so that nothing can be compared.
UNDETERMINED = frozenset(
    "empty empty_like new_empty new_empty_strided empty_strided empty_permuted".split()
)  # fmt: skip
OPS = {op.formatted_name: op for op in op_db if op.name not in UNDETERMINED}


@dataclass(frozen=True)
class Case:
    """Samples `first` to `last` (exclusive) of one operator in one dtype, called in one form."""

    op: str
    dtype: torch.dtype
    form: str
    first: int = 0
    last: int = CHUNK

    @property
    def head(self) -> str:
        """What the names of all samples of the operator in this dtype and form begin with."""
        return f"{self.op}/{str(self.dtype)[6:]}/{self.form}/"

    @property
    def key(self) -> str:
        """A name that stays, for result files and lists of known failures."""
        return f"{self.head}{self.first}-{self.last}"

    @property
    def train(self) -> bool:
        """True where backward belongs to the case."""
        return self.form == "train"

    def build(self, device: str) -> Program:
        """Builds the program: the samples are its argument, the results of all of them its output."""
        return program(self, device)

    def limited(self, count: int) -> Case:
        """The same with no more than `count` samples."""
        return replace(self, last=min(self.last, self.first + count))

    def singles(self) -> list[Case]:
        """The same samples, one a case."""
        return [replace(self, first=n, last=n + 1) for n in range(self.first, self.last)]


def cases(
    device: str, dtypes: tuple[torch.dtype, ...] | None = None, only: Sequence[str] = ("",)
) -> Iterator[Case]:
    """Yields every case whose key begins with one of `only`, in the database's order; counting samples makes them once."""
    for name, op in OPS.items():
        for dtype in sorted(op.supported_dtypes(device), key=str):
            if dtypes is None or dtype in dtypes:
                for form in FORMS:
                    head = Case(name, dtype, form, 0, 0).head
                    if any(head.startswith(p) or p.startswith(head) for p in only):
                        yield from (
                            c for c in _chunks(name, dtype, form, device) if c.key.startswith(tuple(only))
                        )


def _chunks(name: str, dtype: torch.dtype, form: str, device: str) -> Iterator[Case]:
    count = (
        len(samples(Case(name, dtype, form, 0, 10**9), device)) if has_form(name, dtype, form, device) else 0
    )
    for first in range(0, count, CHUNK):
        yield Case(name, dtype, form, first, min(first + CHUNK, count))


def has_form(name: str, dtype: torch.dtype, form: str, device: str) -> bool:
    """True where the operator can be called so."""
    op = OPS[name]
    if form == "train":
        return op.supports_autograd and dtype in op.supported_backward_dtypes(device)
    if form == "in_place":
        return op.get_inplace() is not None
    return form == "call" or op.supports_out


def samples(case: Case, device: str) -> list[tuple]:
    """Returns (input, args, kwargs) of the case's samples; the caller seeds."""
    op = OPS[case.op]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = op.sample_inputs(device, case.dtype, requires_grad=case.form == "train")
        if case.form == "in_place":
            made = (s for s in made if not s.broadcasts_input)
        return [(s.input, s.args, s.kwargs) for s in itertools.islice(made, case.first, case.last)]


def program(case: Case, device: str) -> Program:
    """Builds the case's program."""
    op = OPS[case.op]
    function = op.get_inplace() if case.form == "in_place" else op.get_op()
    given = samples(case, device)
    if case.form == "out":
        given = [(i, a, {**k, "out": _out(function(i, *a, **k))}) for i, a, k in given]

    def call_each(each):
        return [function(i, *a, **k) for i, a, k in each]

    return Program(call_each, (given,))


def _out(result: object) -> object:
    """Destinations of a call's results, filled with something else."""
    return pytree.tree_map_only(torch.Tensor, lambda t: torch.ones_like(t.detach()), result)
