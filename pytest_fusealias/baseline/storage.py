"""Where saved runs lie: `NNNN_NAME.json` in one folder, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_fusealias.baseline.schema import FormatError, Run, dumps, loads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_NAME = "baseline"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FILE = re.compile(r"(\d{4,})_(.+)\.json")
_TRIES = 1000


class StorageError(Exception):
    """A file of saved runs cannot be read or written: which, why, and what to do."""


def read_run(path: Path) -> Run:
    """Returns a saved run; raises StorageError, and changes nothing."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StorageError(f"{path}: there is no such file") from None
    except UnicodeDecodeError:
        raise StorageError(f"{path} cannot be read as a saved run: it is not UTF-8 text") from None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return loads(text)
    except FormatError as error:
        raise StorageError(
            f"{path} cannot be read as a saved run: {error}; the file was left as it is"
        ) from None


def saved_runs(folder: Path) -> list[tuple[int, str, Path]]:
    """Returns number, name and path of each saved run, oldest first."""
    try:
        files = list(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise StorageError(f"{folder} cannot be read: {error.strerror}") from None
    found = [(_FILE.fullmatch(path.name), path) for path in files]
    return sorted((int(match[1]), match[2], path) for match, path in found if match is not None)


def locate(folder: Path, name: str, base: Path) -> Path | None:
    """Returns the latest saved run of that name, or the file of that path (from `base`); None where there is none."""
    if "/" in name or "\\" in name or name.endswith(".json"):
        path = base / name
        return path if path.exists() else None
    return next((path for _, found, path in reversed(saved_runs(folder)) if found == name), None)


def save_run(folder: Path, name: str, document: Mapping[str, object]) -> Path:
    """Writes the next numbered file and returns its path; a file that another run wrote meanwhile is never replaced.

    Raises StorageError.
    """
    _make_folder(folder)
    with _written(folder, dumps(document)) as waiting:
        for _ in range(_TRIES):
            number = max((n for n, _, _ in saved_runs(folder)), default=0) + 1
            path = folder / f"{number:04d}_{name}.json"
            try:
                os.link(waiting, path)
            except FileExistsError:
                continue
            except OSError:  # a file system without hard links
                if not path.exists():
                    waiting.replace(path)
                    return path
                continue
            return path
    raise StorageError(f"{folder}: no free number was found for {name}")


def write_document(path: Path, document: Mapping[str, object]) -> None:
    """Writes a JSON file, replacing what was there only when the new one is complete. Raises StorageError."""
    write_text(path, dumps(document))


def write_text(path: Path, text: str) -> None:
    """Writes a text file, replacing what was there only when the new one is complete. Raises StorageError."""
    require_file_place(path)
    _make_folder(path.parent)
    with _written(path.parent, text) as waiting:
        try:
            waiting.replace(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}; it was left as it is") from None


def require_file_place(path: Path) -> None:
    """Raises StorageError where a file cannot be written for a reason that can be seen beforehand."""
    if path.is_dir():
        raise StorageError(f"{path} is a folder; expected the path of a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise StorageError(f"{path} is read-only; it was left as it is")
    require_folder_place(path.parent)


def require_folder_place(folder: Path) -> None:
    """Raises StorageError where a folder cannot be made or written to, as far as that can be seen beforehand."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise StorageError(f"{nearest} is a file; expected a folder")
    if not os.access(nearest, os.W_OK):
        raise StorageError(f"{nearest} is read-only")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made: {error.strerror}") from None


@contextlib.contextmanager
def _written(folder: Path, text: str) -> Iterator[Path]:
    """A complete file beside its destination; it is gone after the block where nobody moved it."""
    waiting: Path | None = None
    try:
        handle, name = tempfile.mkstemp(suffix=".part", dir=folder)
        waiting = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        waiting.chmod(0o644)
    except OSError as error:
        if waiting is not None:
            waiting.unlink(missing_ok=True)
        raise StorageError(f"{folder} cannot be written to: {error.strerror}; nothing was changed") from None
    try:
        yield waiting
    finally:
        waiting.unlink(missing_ok=True)
