"""Deliberately broken backends, each with a program that shows the defect and the checks that must and may fire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_fusealias.build import Program


@dataclass(frozen=True)
class Mutant:
    """`backend` is a Dynamo backend or a compiler of functions; `must` fire, `may` fire too, nothing else does."""

    name: str
    backend: Callable[..., Any]
    make: Callable[[], Program]
    must: frozenset[str]
    may: frozenset[str] = frozenset()
    spec: dict[str, Any] = field(default_factory=dict)
    wrong_backends: tuple[str, ...] = ()  # real ones that have this very defect


def clones(tensors):
    return [
        t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
        for t in tensors
    ]


def on_outputs(change):
    """A backend that runs the graph and then changes its list of outputs."""

    def backend(graph, example_inputs):
        del example_inputs
        return lambda *inputs: tuple(change(list(graph(*inputs)), inputs))

    return backend


def on_inputs_after(change):
    """A backend that runs the graph and then touches its inputs."""

    def backend(graph, example_inputs):
        del example_inputs

        def run(*inputs):
            outputs = graph(*inputs)
            with torch.no_grad():
                change(inputs)
            return outputs

        return run

    return backend


# -------------------------------------------------------------------------------------------------- programs


def ema():
    def step(average, x):
        average.lerp_(x, 0.1)
        return x * 2

    return Program(step, (torch.randn(5), torch.randn(5)))


def cloned():
    return Program(lambda x: (x.clone(), x * 2), (torch.randn(4),))


def twins():
    return Program(lambda x: (x + 1, x + 1), (torch.randn(4),))


def returned_view():
    return Program(lambda x: x.mul_(2)[1:], (torch.randn(6),))


def transposed():
    return Program(lambda x: x.t() * 2, (torch.randn(3, 4),))


def trainable():
    return Program(lambda x, w: (x * w).sin(), (torch.randn(4), torch.randn(4, requires_grad=True)))


def two_weights():
    def product(a, b):
        return a * b

    return Program(product, (torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)))


def window():
    base = torch.randn(8)

    def write(view, y):
        view.mul_(2)
        return y.sum()

    return Program(write, (base[1:4], torch.randn(3)))


def reader():
    return Program(lambda x, y: x + y, (torch.randn(4), torch.randn(4)))


def unused():
    return Program(lambda x, _y: x * 2, (torch.randn(4), torch.randn(4)))


def two_copies():
    def copies(a, b, x, y):
        a.copy_(x)
        b.copy_(y)

    return Program(copies, tuple(torch.randn(4) for _ in range(4)))


def raising():
    return Program(torch.linalg.cholesky, (-torch.eye(3),))


def raising_after_write():
    def write_then_raise(x, matrix):
        x.add_(1)
        return torch.linalg.cholesky(matrix)

    return Program(write_then_raise, (torch.zeros(3), -torch.eye(3)))


def dropout():
    return Program(lambda x: torch.nn.functional.dropout(x, 0.5), (torch.ones(64),))


def empty_twice():
    def same(x):
        e = x[:0] * 2
        return e, e, x + 1

    return Program(same, (torch.randn(3),))


def returned_input():
    def in_place(x):
        x.mul_(2)
        return x

    return Program(in_place, (torch.randn(4),))


def complex_conjugate():
    return Program(lambda z: (z.conj(), z * 2), (torch.randn(3, dtype=torch.complex64),))


# -------------------------------------------------------------------------------------------------- backends


def drops_mutation(graph, example_inputs):
    del example_inputs
    return lambda *inputs: graph(*clones(inputs))


def zeroes_one_gradient(graph, example_inputs):
    del example_inputs
    return lambda a, b: graph(a, b.detach() + 0 * b)


def mutates_unused(function):
    compiled = torch.compile(function, backend="eager")

    def run(x, y):
        y.add_(1)
        return compiled(x, y)

    return run


def returns_copy_of_input(function):
    compiled = torch.compile(function, backend="eager")
    return lambda x: compiled(x).clone()


def splits_object(function):
    compiled = torch.compile(function, backend="eager")

    def run(x):
        first, second, third = compiled(x)
        return first, second.clone(), third

    return run


def resolves_conjugate(function):
    compiled = torch.compile(function, backend="eager")

    def run(z):
        first, second = compiled(z)
        return first.resolve_conj(), second

    return run


def swallows_exception(graph, example_inputs):
    del example_inputs

    def run(*inputs):
        try:
            return graph(*inputs)
        except RuntimeError:
            return (torch.zeros(3, 3),)

    return run


def forgets_write_before_raising(graph, example_inputs):
    del example_inputs
    return lambda *inputs: graph(*clones(inputs))


def changes_backward_sign(graph, example_inputs):
    del example_inputs
    return lambda a, b: graph(a, 2 * b.detach() - b)


def suppressed(graph, example_inputs):
    raise torch._dynamo.exc.SkipFrame


def gives_function_back(function):
    return function


def swap_targets(inputs):
    """Dynamo's inputs are in the order of first use: a, x, b, y."""
    kept = inputs[0].clone()
    inputs[0].copy_(inputs[2])
    inputs[2].copy_(kept)


def write_past_window(inputs):
    inputs[0].as_strided((1,), (1,), 6).fill_(99.0)


def perturb(outputs, _inputs):
    return [o * 1.001 for o in outputs]


MUTANTS = [
    Mutant("drops_mutation", drops_mutation, ema, frozenset({"mutation"})),
    Mutant(
        "returns_input_for_clone",
        on_outputs(lambda outs, ins: [ins[0], *outs[1:]]),
        cloned,
        frozenset({"alias"}),
        frozenset({"identity"}),
    ),
    Mutant(
        "merges_equal_outputs",
        on_outputs(lambda outs, _: [outs[0], outs[0]]),
        twins,
        frozenset({"alias"}),
        frozenset({"identity"}),
    ),
    Mutant(
        "turns_view_into_copy",
        on_outputs(lambda outs, _: [o.clone() for o in outs]),
        returned_view,
        frozenset({"alias"}),
    ),
    Mutant(
        "changes_strides",
        on_outputs(lambda outs, _: [o.contiguous() for o in outs]),
        transposed,
        frozenset({"layout"}),
    ),
    Mutant(
        "changes_dtype", on_outputs(lambda outs, _: [o.double() for o in outs]), reader, frozenset({"layout"})
    ),
    Mutant(
        "drops_requires_grad",
        on_outputs(lambda outs, _: [o.detach() for o in outs]),
        trainable,
        frozenset({"meta"}),
        frozenset({"grads"}),
    ),
    Mutant("perturbs_values", on_outputs(perturb), reader, frozenset({"values"})),
    Mutant("zeroes_one_gradient", zeroes_one_gradient, two_weights, frozenset({"grads"})),
    Mutant("flips_one_gradient", changes_backward_sign, two_weights, frozenset({"grads"})),
    Mutant("writes_outside_window", on_inputs_after(write_past_window), window, frozenset({"mutation"})),
    Mutant(
        "mutates_read_only_input",
        on_inputs_after(lambda ins: ins[1].add_(1)),
        reader,
        frozenset({"mutation"}),
    ),
    Mutant("mutates_unused_input", mutates_unused, unused, frozenset({"mutation"})),
    Mutant("swaps_two_copies", on_inputs_after(swap_targets), two_copies, frozenset({"mutation"})),
    Mutant(
        "swallows_exception",
        swallows_exception,
        raising,
        frozenset({"raises"}),
        spec={"raises": RuntimeError},
    ),
    Mutant(
        "forgets_write_before_raising",
        forgets_write_before_raising,
        raising_after_write,
        frozenset({"mutation"}),
        spec={"raises": RuntimeError},
        wrong_backends=(
            "aot_eager",
            "fusion_core",
        ),  # functionalization writes inputs at the end of the graph
    ),
    Mutant("draws_once_more", on_inputs_after(lambda _ins: torch.rand(1)), dropout, frozenset({"rng"})),
    Mutant("splits_one_object", splits_object, empty_twice, frozenset({"identity"})),
    Mutant(
        "copies_returned_input",
        returns_copy_of_input,
        returned_input,
        frozenset({"alias"}),
        frozenset({"identity"}),
    ),
    Mutant(
        "resolves_conjugate", resolves_conjugate, complex_conjugate, frozenset({"meta"}), frozenset({"alias"})
    ),
    Mutant("never_compiles", gives_function_back, reader, frozenset({"compiled"})),
    Mutant("skips_every_frame", suppressed, reader, frozenset({"compiled"})),
]
