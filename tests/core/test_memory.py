"""The estimate of a plan equals what the allocator shows, to the byte."""

import memory_programs
import pytest
import torch

import fusion_core
from fusion_core import estimate_memory
from fusion_core.memory.events import ProfilerBusyError, recorded


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, raised while Dynamo traces optimizers
@pytest.mark.parametrize("bookend", [False, True], ids=["no bookend", "bookend"])
@pytest.mark.parametrize("case", memory_programs.CASES, ids=lambda c: c.name)
def test_estimate_equals_measurement(case, bookend):
    options = {"bookend": bookend}
    measured = memory_programs.measured(case, "cpu", lambda f: fusion_core.compile(f, **options))
    function, arguments = case.make("cpu")
    estimate = estimate_memory(function, *arguments, options=options)
    assert estimate.exact, estimate.doubts
    forward = estimate.forward
    assert (forward.peak.bytes, forward.left.bytes) == measured.forward
    if case.trains:
        assert (estimate.backward.peak.bytes, estimate.backward.left.bytes) == measured.backward
