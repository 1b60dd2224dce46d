"""A value that dies in a launch gives its memory to an output, where that changes nothing else."""

import pytest
import torch

import fusion_core
from fusion_core.errors import KernelError
from fusion_core.executors.reference import ReferenceExecutor
from fusion_core.kernels import KernelCache
from pytest_fusealias.build import Program
from pytest_fusealias.check import check
from pytest_fusealias.model import Outcome, Spec


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch):
    """Reuse is for devices where a launch needs all inputs to its end; the reference executor stands in for one."""
    monkeypatch.setattr(KernelCache, "writing_devices", frozenset({"cpu"}))


def agrees(function, *arguments, **options):
    def make():
        return Program(function, tuple(a.clone() for a in arguments))

    assert check(make, Spec(backend="fusion_core")).outcome is Outcome.PASS
    return fusion_core.explain(function, *arguments, options=options).reused_buffers


X, W = torch.randn(6, 6), torch.randn(6, 6)


def test_result_of_an_operator_is_written_over():
    def step(x, w):
        hidden = x @ w
        return hidden.sigmoid() * hidden

    (reused,) = agrees(step, X, W)
    assert reused.endswith(" in mm")
    assert fusion_core.estimate_memory(step, X, W).retained_bytes == X.nbytes


def test_value_that_is_read_later_is_kept():
    def step(x, w):
        hidden = x @ w
        active = hidden.sin()
        return active @ w + hidden

    reused = agrees(step, X, W)
    assert all(not text.startswith("sin ") for text in reused)


def test_value_that_a_view_reads_later_is_kept():
    def step(x, w):
        hidden = x @ w
        row = hidden[0]
        active = hidden.sin()
        return active @ w + row

    assert all(not text.startswith("sin ") for text in agrees(step, X, W))


def test_returned_values_and_inputs_are_kept():
    def step(x, w):
        hidden = x @ w
        return hidden, hidden.sin(), x.cos()

    assert agrees(step, X, W) == ()


def test_reader_at_other_indices_is_kept():
    def step(x, w):
        hidden = x @ w
        return hidden + hidden.t()

    assert agrees(step, X, W) == ()


def test_other_types_and_shapes_are_kept():
    def step(x, w):
        hidden = x @ w
        return hidden.double() + 1, (x @ w).sum(0) * 2

    assert agrees(step, X, W) == ()


def test_value_that_lives_in_a_written_input_is_kept():
    def step(x, y):
        x.copy_(y)
        y.copy_(x)
        return x * y, y.sum()

    assert agrees(step, torch.randn(1), torch.randn(1)) == ()


def test_value_of_another_library_is_kept():
    with torch.library._scoped_library("fusealias_reuse", "FRAGMENT") as library:
        library.define("kept(Tensor x) -> Tensor")
        buffer = torch.zeros(6, 6)
        library.impl("kept", lambda x: buffer.copy_(x), "CPU")
        library.impl("kept", torch.empty_like, "Meta")
        explanation = fusion_core.explain(lambda x: torch.ops.fusealias_reuse.kept(x).sin(), X)
    assert explanation.reused_buffers == ()


def test_view_of_a_dead_value_serves_inside_but_is_not_returned():
    def inside(x, w):
        return (x @ w).view(36).sin().view(6, 6) @ w

    def returned(x, w):
        return (x @ w).view(36).sin()

    assert len(agrees(inside, X, W)) == 1
    assert agrees(returned, X, W) == ()


def test_failing_kernel_falls_back_to_right_values(monkeypatch):
    class Fails:
        name = "fails"

        def compile(self, program):
            def run(inputs):
                raise KernelError("no", program)

            run.consumes = False
            return run

    def step(x, w):
        hidden = x @ w
        return (hidden.sigmoid() * hidden) @ w

    expected = step(X, W)
    monkeypatch.setattr("fusion_core.kernels.choose_executor", lambda wanted, device: Fails())
    with pytest.warns(RuntimeWarning, match="runs eager"):
        torch.testing.assert_close(fusion_core.compile(step)(X, W), expected)


def test_explanation_names_what_is_reused_apart_from_written_inputs():
    def step(x, w):
        x.add_(1)
        return (x @ w).relu() * 2

    explanation = fusion_core.explain(step, X.clone(), W)
    assert len(explanation.alias_outputs) == 1
    assert len(explanation.reused_buffers) == 1
    assert "in the memory of a value that dies" in str(explanation)


def test_reference_is_no_writing_device_by_itself(monkeypatch):
    monkeypatch.undo()
    assert (
        fusion_core.explain(
            lambda x, w: (x @ w).sin(), X, W, options={"executor": "reference"}
        ).reused_buffers
        == ()
    )
    assert ReferenceExecutor.name == "reference"
