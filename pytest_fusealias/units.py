"""Sizes as people write them, read strictly, and names of files."""

from __future__ import annotations

import hashlib
import re

_FACTORS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
FORMS = (
    "a whole number of bytes, or text such as '512', '512 B', '8 kB', '8 MB' (8000000), '8 KiB', "
    "'8 MiB' (8388608), '1.5 GiB'"
)
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(value: object) -> int:
    """Returns a number of bytes; raises ValueError, which lists the forms, for anything that is not plainly a size."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if found is not None and found[2] in _FACTORS:
        whole, _, part = found[1].partition(".")
        number = int(whole + part) * _FACTORS[found[2]]
        scale: int = 10 ** len(part)
        size, rest = divmod(number, scale)
        if not rest:
            return size
    raise ValueError(f"expected {FORMS}; found {value!r}")


def bytes_text(nbytes: int) -> str:
    """Returns a size for reading: exact bytes, and from 1 KiB on a rounded binary unit beside them."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(nbytes) >= factor:
            return f"{nbytes} B ({nbytes / factor:.4g} {unit})"
    return f"{nbytes} B"


_EXPONENTS = {"ns": -9, "us": -6, "ms": -3, "s": 0}
TIME_FORMS = "a number with ns, us, ms or s, such as '50us' or '1.5 s'"
_TIME_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|ms|s)\s*")


def parse_seconds(value: str) -> float:
    """Returns a time in seconds; raises ValueError, which lists the forms."""
    found = _TIME_TEXT.fullmatch(value)
    if found is None:
        raise ValueError(f"expected {TIME_FORMS}; found {value!r}")
    return float(f"{found[1]}e{_EXPONENTS[found[2]]}")


def time_unit(seconds: float) -> str:
    """Returns the unit in which a time reads best."""
    return next((u for u in ("s", "ms", "us") if abs(seconds) >= 10.0 ** _EXPONENTS[u]), "ns")


def seconds_text(seconds: float, unit: str = "") -> str:
    """Returns a time for reading, four digits, in `unit` or in the one that fits."""
    unit = unit or time_unit(seconds)
    return f"{seconds * 10.0 ** -_EXPONENTS[unit]:.4g} {unit}"


def artifact_name(title: str) -> str:
    """Returns a file name without its ending for a title; titles that differ give names that differ."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")[-100:]
    return f"{readable}-{hashlib.sha256(title.encode()).hexdigest()[:8]}"
