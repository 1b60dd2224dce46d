"""Each measured hazard: the naive program is refused, computes wrong numbers when run anyway, and the lowering's does not."""

import pytest
import torch
from equal import assert_equal
from hazards import HAZARDS, MORE

from fusion_core.errors import VerifyError
from fusion_core.executors.reference import ReferenceExecutor
from fusion_core.program.verify import verify


def outcome(function, inputs):
    """Returns all that a caller sees: results and inputs afterwards."""
    results = function(*inputs)
    results = () if results is None else results if isinstance(results, (tuple, list)) else (results,)
    return [t.clone() for t in (*results, *inputs)], [t.untyped_storage().data_ptr() for t in results]


@pytest.mark.parametrize("name", HAZARDS)
def test_naive_program_is_refused(name):
    _, _, program, rule = HAZARDS[name]
    with pytest.raises(VerifyError, match=rf"^({rule}): %\d+ \(model\.py:\d+\)"):
        verify(program)


@pytest.mark.parametrize("name", [n for n in HAZARDS if not n.startswith("P5")])
def test_naive_program_is_wrong_on_the_reference_executor(name):
    """P5 (readers beside a write) happened to be right where it was measured; its order is not guaranteed."""
    function, make, program, _ = HAZARDS[name]
    torch.manual_seed(0)
    mine = make()
    torch.manual_seed(0)
    theirs = make()
    kernel = ReferenceExecutor().compile(program)
    found, storages = outcome(lambda *t: kernel(list(t)), mine)
    expected, _ = outcome(function, theirs)
    shares = any(t.untyped_storage().data_ptr() in storages for t in mine)
    equal = len(found) == len(expected) and all(map(torch.equal, found, expected))
    assert shares or not equal


@pytest.mark.parametrize("name", [*HAZARDS, *MORE])
def test_lowered_program_is_right(name):
    function, make = ({**HAZARDS, **MORE})[name][:2]
    assert_equal(function, make)
