"""Helpers of the suite: golden files and a fresh compiler for each test."""

from pathlib import Path

import pytest
import torch

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser):
    parser.addoption(
        "--golden-update", action="store_true", help="write golden files instead of comparing with them"
    )


@pytest.fixture
def golden(request):
    """Compares text with a golden file of this torch release: graphs differ between releases."""

    def compare(name, text):
        release = ".".join(torch.__version__.split(".")[:2])
        path = GOLDEN / release / f"{name}.txt"
        if request.config.getoption("--golden-update"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        if not path.parent.exists():
            pytest.skip(f"no golden files for torch {release}")
        assert text + "\n" == path.read_text()

    return compare


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    torch._dynamo.reset()
