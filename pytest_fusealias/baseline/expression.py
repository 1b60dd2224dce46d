"""What may grow against a baseline, and by how much: `time:10%+50us`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_fusealias.units import bytes_text, parse_bytes, parse_seconds, seconds_text

# Field -> the unit of an absolute limit.
FIELDS = {"time": "seconds", "ratio": "none", "compile": "seconds", "peak": "bytes", "retained": "bytes"}
FORM = (
    "FIELD:PERCENT%, FIELD:ABSOLUTE or FIELD:PERCENT%+ABSOLUTE (then both must be exceeded), where FIELD is one of "
    f"{', '.join(FIELDS)}; such as time:10%+50us, ratio:5%, peak:0%, compile:30%+1s"
)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")


class ExpressionError(ValueError):
    """An expression that cannot be read."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A field may grow by `share` of its old value and by `absolute` (seconds or bytes); it fails where it exceeds both."""

    field: str
    share: float = 0.0
    absolute: float = 0.0

    def allowed(self, old: float) -> float:
        """Returns the largest new value that does not exceed the limit."""
        return old + max(self.share * old, self.absolute)

    def __str__(self) -> str:
        """Returns the expression."""
        parts = [f"{self.share * 100:g}%"] if self.share or not self.absolute else []
        if self.absolute:
            parts.append(amount_text(self.field, self.absolute))
        return f"{self.field}:{'+'.join(parts)}"


def amount_text(field: str, amount: float) -> str:
    """Returns an amount of a field for reading."""
    if FIELDS[field] == "bytes":
        return bytes_text(int(amount))
    return seconds_text(amount) if FIELDS[field] == "seconds" else f"{amount:.3f}"


def parse_limit(text: str) -> Limit:
    """Returns the limit of an expression; raises ExpressionError with what was found and the forms."""
    field, colon, amounts = text.replace(" ", "").partition(":")
    if field not in FIELDS or not colon or not amounts:
        raise ExpressionError(f"found {text!r}; expected {FORM}")
    share, absolute = 0.0, 0.0
    parts = amounts.split("+")
    found = _SHARE.fullmatch(parts[0])
    if found is not None:
        share = float(found[1]) / 100
        parts = parts[1:]
    if len(parts) > 1 or (parts and FIELDS[field] == "none"):
        raise ExpressionError(f"found {text!r}; expected {FORM}")
    if parts:
        absolute = _absolute(field, parts[0], text)
    return Limit(field, share, absolute)


def _absolute(field: str, amount: str, text: str) -> float:
    try:
        return parse_bytes(amount) if FIELDS[field] == "bytes" else parse_seconds(amount)
    except ValueError as error:
        raise ExpressionError(f"found {text!r}: {error}") from None
