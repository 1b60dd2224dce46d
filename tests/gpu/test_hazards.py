"""The nine hazards that were measured on nvFuser, on nvFuser: what a user writes comes out right, at the expected cost."""

import re

import pytest
import torch
from equal import assert_equal
from hazards import HAZARDS, MORE
from test_hazards import outcome

import fusion_core
from fusion_core.executors import nvfuser
from fusion_core.executors.nvfuser import NvFuserExecutor

pytestmark = pytest.mark.gpu

MEASURED = "0.2.36"  # the release on which the naive programs were seen to fail


@pytest.mark.parametrize("name", [*HAZARDS, *MORE])
def test_lowered_program_is_right(name):
    function, make = ({**HAZARDS, **MORE})[name][:2]
    for _ in range(3):
        assert_equal(function, lambda: tuple(_moved(t) for t in make()))


def _moved(tensor):
    """Moves a view with its base, so that gaps stay gaps."""
    base = tensor if tensor._base is None else tensor._base
    return base.cuda().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


@pytest.mark.parametrize(
    "name",
    ["P1_clone_then_write", "P2_row_padded_target", "P4_transposed_reader", "P7_one_value_two_targets"],
)
def test_naive_program_is_wrong(name):
    """Why the rules exist. If a new release turns one of these right, its rule can be relaxed."""
    if MEASURED not in str(nvfuser.version()):
        pytest.skip(f"measured on nvFuser {MEASURED}")
    function, make, program, _ = HAZARDS[name]
    wrong = False
    for seed in range(5):
        torch.manual_seed(seed)
        mine = [_moved(t) for t in make()]
        torch.manual_seed(seed)
        theirs = [_moved(t) for t in make()]
        kernel = NvFuserExecutor().compile(program)
        found, _ = outcome(lambda *t: kernel(list(t)), mine)  # noqa: B023
        expected, _ = outcome(function, theirs)
        wrong |= len(found) != len(expected) or not all(map(torch.equal, found, expected))
    assert wrong


def kernels(function, *args):
    """Returns how many CUDA kernels nvFuser generated for the one program of `function`."""
    (report,) = fusion_core.explain(function, *args).programs
    kernel = NvFuserExecutor().compile(report.program)
    given = [lifted(a, v.value.type) for a, v in zip(args, report.program.inputs, strict=True)]
    kernel(given)
    return len(re.findall(r"__global__ void nvfuser_", kernel.sources(given)))


def lifted(tensor, kind):
    if kind.host:
        return tensor
    missing = len(kind.shape) - tensor.dim()
    return tensor.reshape(-1) if missing < 0 else tensor[(None,) * missing]


OPERANDS = {
    "bias": lambda: torch.randn(512, device="cuda"),
    "expanded": lambda: torch.randn(512, device="cuda")[None].expand(256, 512),
    "zero_dim": lambda: torch.tensor(0.1, device="cuda"),
    "host_scalar": lambda: torch.tensor(0.1),
}


@pytest.mark.parametrize("operand", OPERANDS)
def test_p6_an_operand_of_lower_rank_costs_no_kernel(operand):
    x = torch.randn(256, 512, device="cuda")
    assert kernels(lambda x, b: x.add_(b), x, OPERANDS[operand]()) == 1


def test_p9_a_warm_call_compiles_nothing():
    x, y = torch.randn(1024, device="cuda"), torch.randn(1024, device="cuda")
    compiled = fusion_core.compile(lambda x, y: x.add_(y))
    for _ in range(3):
        compiled(x, y)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        compiled(x, y)
        torch.cuda.synchronize()
    launched = [e for e in profile.events() if "nvfuser" in e.name]
    assert len(launched) == 1
