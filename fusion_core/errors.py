"""Errors of the compiler.

FusionError
|- OptionError        an option or mode that does not exist (user)
|- InputError         a tensor that was passed has no memory any more (user)
|- FallbackError      something would run eager under fallback="error" (user)
|- KernelError        an executor cannot compile or run a program; the region runs eager unless fallback="error"
|- InternalError      a stage failed (internal: a defect of this package)
`- VerifyError        a FusionProgram breaks a write rule (internal: a defect of this package)
"""

from __future__ import annotations


class FusionError(Exception):
    """Base of all errors raised by this package."""


class OptionError(FusionError, ValueError):
    """An unknown option, a value of a wrong kind, or a mode that this backend does not have."""


class InputError(FusionError, RuntimeError):
    """A tensor that was passed cannot be computed with; nothing has been written."""


class FallbackError(FusionError):
    """An operator cannot be lowered and `fallback="error"` was asked for."""


class InternalError(FusionError):
    """A stage of the compiler failed on a graph that AOTAutograd traced; `__cause__` is its error."""


class KernelError(FusionError):
    """An executor refused or failed to run a program; `program` is the program, and the message the executor's."""

    def __init__(self, text: str, program: object) -> None:
        super().__init__(text)
        self.program = program


class VerifyError(FusionError):
    """A FusionProgram breaks one of the write rules; `rule`, `value` and `line` say which, where."""

    def __init__(self, rule: str, value: str, line: str, text: str) -> None:
        super().__init__(f"{rule}: {value} ({line or 'no source line'}): {text}")
        self.rule = rule
        self.value = value
        self.line = line
