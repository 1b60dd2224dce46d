"""Helpers of the suite: golden files and a fresh compiler for each test."""

from pathlib import Path

import pytest
import torch

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser):
    parser.addoption("--fusion-require-gpu", action="store_true", help="a GPU test that is skipped fails")
    parser.addoption(
        "--conformance-full",
        action="store_true",
        help="judge all inputs of modules, all settings of optimizers",
    )
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


def pytest_collection_modifyitems(config, items):
    """Tests in tests/gpu skip where no GPU is, or fail under --fusion-require-gpu."""
    if torch.cuda.is_available():
        return
    reason = "no CUDA device"
    for item in items:
        if item.get_closest_marker("gpu") is not None and not config.getoption("--fusion-require-gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A required GPU test that skips for any reason has not been run, which is a failure."""
    report = yield
    if (
        report.skipped
        and item.config.getoption("--fusion-require-gpu")
        and item.get_closest_marker("gpu") is not None
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped under --fusion-require-gpu: {report.longrepr}"
    return report
