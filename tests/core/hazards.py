"""The measured hazards of writing inputs in a kernel: a user's function each, and the program that a naive lowering makes."""

import torch

from fusion_core.program.ir import AliasPair, Constant, FusionProgram, Input, Layout, Op, TensorType, Value

ONE = Constant.of(1.0)
VECTOR, SQUARE = TensorType("f32", ("s0",)), TensorType("f32", ("s0", "s0"))
PADDED = TensorType("f32", ("s0", "s1"), Layout((0, 1), "gc"))
DENSE = TensorType("f32", ("s0", "s1"))


def op(name, result, *arguments, **keywords):
    named = tuple((k, Constant.of(v)) for k, v in keywords.items())
    return Op(name, arguments, named, result, f"model.py:{result.index}")


def program(inputs, ops, outputs, aliases):
    given = tuple(Input(v, i, f"model.py:{v.index}") for i, v in enumerate(inputs))
    return FusionProgram(
        given, tuple(ops), tuple(outputs), tuple(AliasPair(*p, "model.py:9") for p in aliases)
    )


def values(*types):
    return [Value(i, t) for i, t in enumerate(types)]


def _p1():
    x, kept, new = values(VECTOR, VECTOR, VECTOR)
    return program([x], [op("set", kept, x), op("add.Tensor", new, x, ONE)], [kept], [(x, new)])


def _p2():
    x, new = values(PADDED, DENSE)
    return program([x], [op("add.Tensor", new, x, ONE)], [], [(x, new)])


def _p3():
    a, b, c, product = values(SQUARE, SQUARE, SQUARE, SQUARE)
    return program([a, b, c], [op("mm.default", product, a, b)], [], [(c, product)])


def _p4():
    x, turned, new = values(SQUARE, SQUARE, SQUARE)
    ops = [op("permute", turned, x, Constant.of((1, 0))), op("add.Tensor", new, turned, ONE)]
    return program([x], ops, [], [(x, new)])


def _p5():
    rows = TensorType("f32", ("s0",))
    x, new, by_row = values(DENSE, DENSE, rows)
    ops = [op("mul.Tensor", new, x, Constant.of(2.0)), op("sum", by_row, x, Constant.of((1,)), keepdim=False)]
    return program([x], ops, [by_row], [(x, new)])


def _p7():
    x, y, w, new = values(VECTOR, VECTOR, VECTOR, VECTOR)
    return program([x, y, w], [op("add.Tensor", new, w, ONE)], [], [(x, new), (y, new)])


def _p8():
    x, new = values(VECTOR, VECTOR)
    return program([x], [op("add.Tensor", new, x, ONE)], [new], [(x, new)])


def keep_and_update(x):
    kept = x.clone()
    x.add_(1)
    return kept


def update(x):
    x.add_(1)


def product_into(a, b, c):
    c.copy_(a @ b)


def turn(x):
    x.copy_(x.t() + 1)


def scale_and_sums(x):
    sums = x.sum(0), x.sum(1)
    x.mul_(2)
    return sums


def scale_and_sum(x):
    kept = x.sum(1)
    x.mul_(2)
    return kept


def same_value_twice(x, y, w):
    new = w + 1
    x.copy_(new)
    y.copy_(new)


def update_and_return(x):
    new = x + 1
    x.copy_(new)
    return new


def largest_into(x, y):
    x.copy_(y.amax(1, keepdim=True))


def sum_into(x, y):
    x.copy_(y.sum(1))


def _randn(*shape):
    return torch.randn(*shape)


def _row_padded():
    return (_randn(40, 80)[:, :50],)


# name: (what a user writes, inputs, the naive program, the rule that refuses it)
HAZARDS = {
    "P1_clone_then_write": (keep_and_update, lambda: (_randn(1000),), _p1(), "R2|R5"),
    "P2_row_padded_target": (update, _row_padded, _p2(), "R6"),
    "P3_library_product": (
        product_into,
        lambda: (_randn(64, 64), _randn(64, 64), torch.zeros(64, 64)),
        _p3(),
        "R9",
    ),
    "P4_transposed_reader": (turn, lambda: (_randn(2048, 2048),), _p4(), "R3"),
    "P5_reductions_beside_a_write": (scale_and_sum, lambda: (_randn(64, 96),), _p5(), "R3"),
    "P7_one_value_two_targets": (same_value_twice, lambda: (_randn(8), _randn(8), _randn(8)), _p7(), "R1"),
    "P8_written_value_returned": (update_and_return, lambda: (_randn(16),), _p8(), "R2"),
}
MORE = {
    "P2_strided_vector": (update, lambda: (_randn(40)[::2],)),
    "P2_column_major": (update, lambda: (_randn(8, 4).t(),)),
    "P6_reduction_of_nothing": (largest_into, lambda: (_randn(6, 1), _randn(6, 1))),
    "P6_reduction_of_nothing_without_the_dimension": (sum_into, lambda: (_randn(6), _randn(6, 1))),
    "P5_two_reductions": (scale_and_sums, lambda: (_randn(64, 96),)),
}
