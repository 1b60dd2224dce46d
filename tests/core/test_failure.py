"""An executor that fails: the region runs eager, once said and with a repro, and nothing was written before."""

import warnings
from pathlib import Path

import pytest
import torch
from equal import ramp

import fusion_core
import fusion_core.kernels
from fusion_core.errors import FallbackError, KernelError
from fusion_core.executors import nvfuser
from fusion_core.executors.reference import ReferenceExecutor


class FailsToCompile:
    name = "fails"

    def compile(self, program):
        raise KernelError("INTERNAL ASSERT FAILED at csrc/somewhere.cpp\nframe #0", program)


class FailsToRun:
    name = "fails"

    def compile(self, program):
        def run(inputs):
            raise KernelError("NVRTC compile error", program)

        run.consumes = False
        return run


class OutOfMemory:
    name = "full"

    def compile(self, program):
        def run(inputs):
            raise torch.OutOfMemoryError("CUDA out of memory")

        run.consumes = False
        return run


def update(x, y):
    x.mul_(2)
    return x + y


@pytest.fixture(params=[FailsToCompile, FailsToRun], ids=["compile", "run"])
def failing(request, monkeypatch):
    monkeypatch.setattr(fusion_core.kernels, "choose_executor", lambda wanted, device: request.param())


def test_region_runs_eager_with_one_warning_and_a_repro(failing):
    torch._dynamo.reset()
    compiled = fusion_core.compile(update)
    x, y = ramp(3), ramp(3)
    with pytest.warns(
        RuntimeWarning, match=r"a fused region \(test_failure.py:\d+\) failed to compile: .* It runs eager"
    ) as seen:
        first = compiled(x, y)
    assert len(seen) == 1
    torch.testing.assert_close(first, ramp(3) * 2 + y)
    torch.testing.assert_close(x, ramp(3) * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(x, y), ramp(3) * 4 + y)
    repro = Path(str(seen[0].message).split("Repro: ")[1].split(" It runs")[0].rstrip("."))
    text = repro.read_text()
    assert "mul.Tensor" in text
    assert "failure" in text


def test_fallback_error_raises_and_leaves_the_inputs(failing):
    torch._dynamo.reset()
    x = ramp(3)
    with pytest.raises(Exception, match="failed to compile") as caught:
        fusion_core.compile(update, fallback="error")(x, ramp(3))
    assert FallbackError.__name__ in str(type(caught.value)) + str(caught.value)
    torch.testing.assert_close(x, ramp(3))


def test_out_of_memory_is_raised_as_such(monkeypatch):
    monkeypatch.setattr(fusion_core.kernels, "choose_executor", lambda wanted, device: OutOfMemory())
    torch._dynamo.reset()
    x = ramp(3)
    with pytest.raises(torch.OutOfMemoryError):
        fusion_core.compile(update)(x, ramp(3))
    torch.testing.assert_close(x, ramp(3))


@pytest.mark.skipif(torch.cuda.is_available(), reason="nvFuser may be usable here")
def test_nvfuser_that_is_missing_is_told():
    reason = nvfuser.unavailable()
    assert reason
    assert reason in str(fusion_core.explain(update, ramp(3), ramp(3)))
    with pytest.raises(Exception, match="executor='nvfuser': " + reason.split(";")[0]):
        torch._dynamo.reset()
        fusion_core.compile(update, executor="nvfuser")(ramp(3), ramp(3))


def test_tensors_on_the_host_are_computed_by_the_reference_executor():
    assert isinstance(fusion_core.kernels.choose_executor("auto", "cpu"), ReferenceExecutor)
