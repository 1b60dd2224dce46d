"""The three outcomes of a check."""

from __future__ import annotations

import enum


class Outcome(str, enum.Enum):
    """What a check, or all checks together, came to; the third is printed and counted, never folded into PASS."""

    PASS = "PASS"
    FAIL = "FAIL"
    NOT_MEASURED = "NOT-MEASURED"
