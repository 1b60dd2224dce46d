"""Hand-built programs: each broken rule is refused with rule, value and line, and computes wrong numbers when run."""

import pytest
import torch

from fusion_core.errors import VerifyError
from fusion_core.executors.reference import ReferenceExecutor
from fusion_core.program.ir import AliasPair, Constant, FusionProgram, Input, Layout, Op, TensorType, Value
from fusion_core.program.text import text
from fusion_core.program.verify import verify

VECTOR, SCALAR, HALF, MATRIX = (
    TensorType("f32", ("s0",)),
    TensorType("f32", ()),
    TensorType("f16", ("s0",)),
    TensorType("f32", ("s1", "s0")),
)
COLUMN = TensorType("f32", ("s0", 1))
PADDED = TensorType("f32", ("s1", "s0"), Layout((0, 1), "gc"))


def value(index, kind=VECTOR):
    return Value(index, kind)


def op(name, result, *arguments):
    return Op(name, arguments, (), result, f"model.py:{result.index}")


def inputs(*values, storages=None):
    return tuple(
        Input(v, s, f"model.py:{v.index}")
        for v, s in zip(values, storages or range(len(values)), strict=True)
    )


X, Y, A, B, C = (value(i) for i in range(5))
ONE = Constant.of(1.0)

BROKEN = {
    "R1_two_sources": (
        FusionProgram(
            inputs(X),
            (op("neg.default", A, X), op("sin.default", B, X)),
            (),
            (AliasPair(X, A, "model.py:7"), AliasPair(X, B, "model.py:8")),
        ),
        "R1: %0 (model.py:8): is written twice; only the last write may leave",
    ),
    "R1_input_as_source": (
        FusionProgram(inputs(X, Y), (), (), (AliasPair(X, Y, "model.py:7"),)),
        "R1: %1 (model.py:7): is an input; write a `set` of it",
    ),
    "R1_two_targets": (
        FusionProgram(
            inputs(X, Y),
            (op("sin.default", A, X),),
            (),
            (AliasPair(X, A, "model.py:7"), AliasPair(Y, A, "model.py:8")),
        ),
        "R1: %2 (model.py:8): is bound to two targets; give each a `set` of its own",
    ),
    "R1_dtype": (
        FusionProgram(
            inputs(X), (op("convert", value(2, HALF), X),), (), (AliasPair(X, value(2, HALF), "model.py:7"),)
        ),
        "R1: %2 (model.py:7): has type f16[s0], but is written into f32[s0]",
    ),
    "R1_intermediate_target": (
        FusionProgram(
            inputs(X),
            (op("neg.default", A, X), op("sin.default", B, X)),
            (),
            (AliasPair(A, B, "model.py:7"),),
        ),
        "R1: %2 (model.py:7): only an input can be written",
    ),
    "R2_returned_source": (
        FusionProgram(inputs(X), (op("neg.default", A, X),), (A,), (AliasPair(X, A, "model.py:7"),)),
        "R2: %2 (model.py:7): is returned, but shares memory with the written input %0",
    ),
    "R3_broadcast_reader": (
        FusionProgram(
            (*inputs(X), Input(value(1, MATRIX), 1, "model.py:1")),
            (op("neg.default", A, X), op("add.Tensor", value(3, MATRIX), value(1, MATRIX), X)),
            (value(3, MATRIX),),
            (AliasPair(X, A, "model.py:7"),),
        ),
        "R3: %0 (model.py:3): is written while add.Tensor (%3) reads it at other indices",
    ),
    "R3_reader_in_another_kernel": (
        FusionProgram(
            inputs(value(0, MATRIX), value(1, MATRIX)),
            (
                op("neg.default", value(2, MATRIX), value(0, MATRIX)),
                op("sin.default", value(3, MATRIX), value(1, MATRIX)),
                Op("sum", (value(1, MATRIX), Constant.of((0,))), (), value(4), "model.py:4"),
            ),
            (value(3, MATRIX), value(4)),
            (AliasPair(value(1, MATRIX), value(2, MATRIX), "model.py:7"),),
        ),
        "R3: %1 (model.py:4): is written while sum (%4) reads it at other indices",
    ),
    "R3_reader_of_its_own": (
        FusionProgram(
            inputs(value(0, MATRIX), value(1, MATRIX), value(5)),
            (
                op("neg.default", value(2, MATRIX), value(0, MATRIX)),
                op("sin.default", value(3, MATRIX), value(1, MATRIX)),
                op("cos.default", value(4), value(5)),
            ),
            (value(3, MATRIX), value(4)),
            (AliasPair(value(1, MATRIX), value(2, MATRIX), "model.py:7"),),
        ),
        "R3: %1 (model.py:3): is written while sin.default (%3) may read it in a later kernel",
    ),
    "R4_swapped": (
        FusionProgram(
            inputs(X, Y),
            (op("set", A, Y), op("set", B, X)),
            (),
            (AliasPair(X, A, "model.py:7"), AliasPair(Y, B, "model.py:8")),
        ),
        "R4: %2 (model.py:7): is the old value of %1, which is written too",
    ),
    "R5_cast_there_and_back": (
        FusionProgram(
            inputs(X),
            (op("convert", value(2, HALF), X), op("convert", B, value(2, HALF))),
            (B,),
            (),
        ),
        "R5: %3 (model.py:0): would be returned as an alias of input %0; make it a `clone`",
    ),
    "R5_sum_of_one": (
        FusionProgram(
            inputs(value(0, COLUMN)),
            (Op("sum", (value(0, COLUMN), Constant.of((1,))), (), A, "model.py:2"),),
            (A,),
            (),
        ),
        "R5: %2 (model.py:0): would be returned as an alias of input %0; make it a `clone`",
    ),
    "R6_gaps": (
        FusionProgram(
            inputs(value(0, PADDED)),
            (op("neg.default", value(1, MATRIX), value(0, PADDED)),),
            (),
            (AliasPair(value(0, PADDED), value(1, MATRIX), "model.py:7"),),
        ),
        "R6: %0 (model.py:7): is written, but is not dense: f32[s1, s0]{0g 1c}",
    ),
    "R8_lower_rank": (
        FusionProgram(
            inputs(X, value(1, SCALAR)),
            (op("mul.Tensor", A, X, value(1, SCALAR)),),
            (),
            (AliasPair(X, A, "model.py:7"),),
        ),
        "R8: %1 (model.py:2): has a lower rank than the result of mul.Tensor, which costs a write another kernel",
    ),
    "R9_library_call": (
        FusionProgram(
            inputs(value(0, MATRIX), value(1, MATRIX)),
            (op("mm.default", value(2, MATRIX), value(0, MATRIX), value(0, MATRIX)),),
            (),
            (AliasPair(value(1, MATRIX), value(2, MATRIX), "model.py:7"),),
        ),
        "R9: %2 (model.py:2): is computed by mm.default, which drops the write; write a `set` of it",
    ),
    "R5_set_of_input": (
        FusionProgram(inputs(X), (op("set", A, X),), (A,), ()),
        "R5: %2 (model.py:0): would be returned as an alias of input %0; make it a `clone`",
    ),
    "R7_overlapping_input": (
        FusionProgram(
            inputs(X, Y, storages=(0, 0)), (op("add.Tensor", A, X, Y),), (), (AliasPair(X, A, "model.py:7"),)
        ),
        "R7: %0 (model.py:0): is written, but input %1 shares its storage",
    ),
    "SSA_undefined": (
        FusionProgram(inputs(X), (op("add.Tensor", A, X, Y),), (A,), ()),
        "SSA: %1 (model.py:2): is read before it is defined",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_program_is_refused(name):
    program, message = BROKEN[name]
    with pytest.raises(VerifyError) as caught:
        verify(program)
    assert str(caught.value) == message
    assert caught.value.rule == name.split("_")[0]


def run(program, *tensors):
    return ReferenceExecutor().compile(program)(list(tensors))


def test_returned_set_of_a_written_input_holds_the_new_value():
    """What nvFuser does to `c = set(x)`, x updated in place, c returned."""
    program = FusionProgram(
        inputs(X), (op("set", A, X), op("add.Tensor", B, X, ONE)), (A,), (AliasPair(X, B, ""),)
    )
    x = torch.zeros(3)
    (returned,) = run(program, x)
    assert returned.data_ptr() == x.data_ptr()
    assert returned.tolist() == [1, 1, 1]
    with pytest.raises(VerifyError, match="R2"):
        verify(program)
    fixed = FusionProgram(
        inputs(X), (op("clone", A, X), op("add.Tensor", B, X, ONE)), (A,), (AliasPair(X, B, ""),)
    )
    x = torch.zeros(3)
    (returned,) = run(verify(fixed), x)
    assert (returned.tolist(), x.tolist()) == ([0, 0, 0], [1, 1, 1])


def test_reader_at_other_indices_sees_the_early_write():
    program, _ = BROKEN["R3_broadcast_reader"]
    x, m = torch.ones(3), torch.zeros(2, 3)
    (returned,) = run(program, x, m)
    assert (returned == -1).all(), "the write came first, as a kernel may order it"


def test_reader_at_the_same_index_sees_the_old_value():
    program = FusionProgram(
        inputs(X), (op("neg.default", A, X), op("add.Tensor", B, X, ONE)), (B,), (AliasPair(X, A, ""),)
    )
    x = torch.ones(3)
    (returned,) = run(verify(program), x)
    assert (returned.tolist(), x.tolist()) == ([2, 2, 2], [-1, -1, -1])


def test_source_that_is_another_written_input():
    """Swap: with both writes in one kernel the second reads what the first has written."""
    program = FusionProgram(
        inputs(X, Y),
        (op("set", A, Y), op("set", B, X)),
        (),
        (AliasPair(X, A, "model.py:7"), AliasPair(Y, B, "model.py:8")),
    )
    with pytest.raises(VerifyError, match="R4: %2"):
        verify(program)
    x, y = torch.zeros(2), torch.ones(2)
    run(program, x, y)
    assert (x.tolist(), y.tolist()) == ([1, 1], [1, 1])


def test_text_is_stable():
    program, _ = BROKEN["R7_overlapping_input"]
    assert (
        text(program)
        == "program(%0: f32[s0] @0, %1: f32[s0] @0) {\n  %2: f32[s0] = add.Tensor(%0, %1)\n  write %0 <- %2\n}"
    )
