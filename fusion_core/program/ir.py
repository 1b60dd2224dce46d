"""The FusionProgram: frozen, hashable, without a torch call. Equal programs share one compiled kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Dim = int | str


@dataclass(frozen=True, slots=True)
class Layout:
    """How dimensions lie in memory: `order` names them from the outermost to the innermost.

    `flags` tells for each of them, in that order: `c` contiguous with what is inside it, `g` a gap, `b` a single element,
    `e` expanded (stride 0).
    """

    order: tuple[int, ...]
    flags: str

    @property
    def is_dense(self) -> bool:
        """True if the elements fill one stretch of memory without gaps, each once."""
        return set(self.flags) <= {"c", "b"}

    @property
    def is_row_major(self) -> bool:
        """True for the layout of a contiguous tensor."""
        return self.is_dense and self.order == tuple(range(len(self.order)))

    def __str__(self) -> str:
        """Returns an empty string for row-major, else dimensions and flags, as in `{1c 0g}`."""
        named = (f"{dim}{flag}" for dim, flag in zip(self.order, self.flags, strict=True))
        return "" if self.is_row_major else "{" + " ".join(named) + "}"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type (`f32`), shape (`s0` is a symbolic size, a number a static one), and layout (None: row-major)."""

    dtype: str
    shape: tuple[Dim, ...]
    layout: Layout | None = None
    host: bool = False

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions from the outermost to the innermost in memory."""
        return tuple(range(len(self.shape))) if self.layout is None else self.layout.order


@dataclass(frozen=True, slots=True)
class Value:
    """The SSA value number `index`."""

    index: int
    type: TensorType


@dataclass(frozen=True, slots=True)
class Constant:
    """A Python scalar or a tuple of whole numbers. `kind` keeps 1, 1.0 and True apart, which compare equal in Python."""

    value: bool | int | float | complex | str | tuple[int, ...] | None
    kind: str

    @staticmethod
    def of(value: bool | complex | str | Sequence[int] | None) -> Constant:
        """Returns the constant for a Python value."""
        if isinstance(value, (bool, int, float, complex, str, type(None))):
            return Constant(value, type(value).__name__)
        return Constant(tuple(value), "tuple")

    def __eq__(self, other: object) -> bool:
        """Compares by spelling, so that nan equals nan and -0.0 differs from 0.0."""
        return isinstance(other, Constant) and self.spelling() == other.spelling()

    def __hash__(self) -> int:
        return hash(self.spelling())

    def spelling(self) -> str:
        """Returns the exact text; floats in hexadecimal, since rounded digits would merge different programs."""
        if isinstance(self.value, float):
            return self.value.hex()
        if isinstance(self.value, complex):
            return f"complex({self.value.real.hex()}, {self.value.imag.hex()})"
        return str(self.value) if isinstance(self.value, str) else repr(self.value)


Argument = Value | Constant


@dataclass(frozen=True, slots=True)
class Input:
    """An input tensor. Inputs with equal `storage` share memory; `line` is where the program's user wrote it."""

    value: Value
    storage: int
    line: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `set` passes a value on as an executor pleases (it may alias); `clone` makes fresh memory."""

    name: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...]
    result: Value
    line: str = field(default="", compare=False)

    def operands(self) -> tuple[Value, ...]:
        """Returns the values among the arguments."""
        every = (*self.arguments, *(argument for _, argument in self.keywords))
        return tuple(a for a in every if isinstance(a, Value))

    def reads(self) -> tuple[Value, ...]:
        """Returns the values whose elements the operation reads: a constant takes shape and type alone from its operand."""
        return () if self.name in CONSTANTS else self.operands()


@dataclass(frozen=True, slots=True)
class AliasPair:
    """`source` is written into the memory of the input `target`. `reason` says why its `set` is there, if it is one."""

    target: Value
    source: Value
    line: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class FusionProgram:
    """Inputs, operations in a legal order, fresh outputs, and writes into inputs."""

    inputs: tuple[Input, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]
    aliases: tuple[AliasPair, ...]

    def leaving(self) -> tuple[Value, ...]:
        """Returns the values that are returned or written."""
        return (*self.outputs, *(pair.source for pair in self.aliases))

    def producers(self) -> dict[Value, Op]:
        """Returns the operation behind each value that is no input."""
        return {op.result: op for op in self.ops}


# Operations on indices alone: they may be carried out without moving data, so that the result shares the operand's memory.
VIEW_OPS = frozenset({"permute", "reshape", "expand", "squeeze", "unsqueeze"})
META_OPS = VIEW_OPS | {"set"}
REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "prod", "var", "any", "all"})
CONSTANTS = frozenset({"full", "full_like"})
# Operations that nvFuser hands to a library when they stand alone; it then forgets to write the aliased input (rule R9).
EXTERNAL_OPS = frozenset(
    {
        "mm",
        "bmm",
        "addmm",
        "matmul",
        "linear",
        "gather",
        "scatter",
        "embedding",
        "argsort",
        "topk",
        "cumsum",
        "cumprod",
    }
)


def is_moving(op: Op, operand: Value) -> bool:
    """True if an element of the result depends on elements of `operand` at other indices."""
    return op.name in VIEW_OPS or op.result.type.shape != operand.type.shape
