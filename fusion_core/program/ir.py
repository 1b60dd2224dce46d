"""The FusionProgram: frozen, hashable, without a torch call. Equal programs share one compiled kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

Dim = int | str


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type (`f32`), shape with symbolic sizes (`s0`; 0 and 1 are static), and layout.

    `layout` is `dense` for row-major without gaps, else the strides as text.
    """

    dtype: str
    shape: tuple[Dim, ...]
    layout: str = "dense"


@dataclass(frozen=True, slots=True)
class Value:
    """The SSA value number `index`."""

    index: int
    type: TensorType


@dataclass(frozen=True, slots=True)
class Constant:
    """A Python scalar. `kind` keeps 1, 1.0 and True apart, which compare equal in Python."""

    value: bool | int | float | complex | str | None
    kind: str

    @staticmethod
    def of(value: bool | complex | str | None) -> Constant:
        """Returns the constant for a Python value."""
        return Constant(value, type(value).__name__)

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
        """Returns the values that the operation reads."""
        every = (*self.arguments, *(argument for _, argument in self.keywords))
        return tuple(a for a in every if isinstance(a, Value))


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

    def producers(self) -> dict[Value, Op]:
        """Returns the operation behind each value that is no input."""
        return {op.result: op for op in self.ops}


# Operations that may be carried out without moving data, so that their result can share the operand's memory.
META_OPS = frozenset({"set"})
