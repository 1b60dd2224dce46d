"""Every lowering row on nvFuser, against eager on the device and against the reference executor of the same program."""

import pytest
import torch
from composed_samples import COMPOSED
from samples import MOVES, X
from test_rows import TARGETS, assert_same, cases

import fusion_core
from fusion_core.executors import nvfuser

pytestmark = pytest.mark.gpu


def three_ways(function, tensors):
    given = [t.cuda() for t in tensors]
    expected = function(*given)
    for executor in ("nvfuser", "reference"):
        torch._dynamo.reset()
        assert_same(fusion_core.compile(function, executor=executor)(*given), expected)


def test_nvfuser_is_usable():
    assert nvfuser.unavailable() == ""


@pytest.mark.parametrize("name", TARGETS)
def test_pointwise_row(name):
    labels = []
    for label, function, tensors in cases(TARGETS[name]):
        try:
            function(*[t.cuda() for t in tensors])
        except (RuntimeError, TypeError):
            continue  # a dtype that eager has on the CPU alone
        three_ways(function, tensors)
        labels.append(label)
    assert labels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_reductions_and_views(name, dtype):
    three_ways(MOVES[name], [X.to(dtype)])


@pytest.mark.parametrize("name", COMPOSED)
def test_composed(name):
    three_ways(*COMPOSED[name])


LAYOUTS = {
    "row_padded": lambda: torch.randn(6, 9, device="cuda")[:, :5],
    "column_major": lambda: torch.randn(5, 6, device="cuda").t(),
    "every_second": lambda: torch.randn(6, 10, device="cuda")[:, ::2],
    "expanded": lambda: torch.randn(6, 1, device="cuda").expand(6, 5),
    "misaligned": lambda: torch.randn(31, device="cuda")[1:].view(6, 5),
    "size_1": lambda: torch.randn(6, 1, device="cuda"),
    "one_element": lambda: torch.randn(1, 1, device="cuda"),
    "rank_8": lambda: torch.randn(1, 2, 1, 2, 3, 1, 2, 2, device="cuda"),
    "rank_9": lambda: torch.randn(1, 2, 1, 2, 3, 1, 2, 2, 1, device="cuda"),
    "empty": lambda: torch.randn(0, 5, device="cuda"),
    "channels_last": lambda: torch.randn(2, 3, 4, 5, device="cuda").to(memory_format=torch.channels_last),
    "complex": lambda: torch.randn(6, 5, device="cuda", dtype=torch.complex64),
}


@pytest.mark.parametrize("form", LAYOUTS)
def test_layouts(form):
    def function(x):
        y = x * 2 + 1
        return y, y.sum(-1), x.transpose(0, 1) - 3

    x = LAYOUTS[form]()
    torch._dynamo.reset()
    assert_same(fusion_core.compile(function)(x), function(x))


@pytest.mark.parametrize("form", [f for f in LAYOUTS if f != "expanded"])
def test_writes_in_layouts(form):
    def function(x):
        x.mul_(2).add_(1)
        return x.sum(-1)

    torch.manual_seed(0)
    x = LAYOUTS[form]()
    base = torch.zeros(x.untyped_storage().nbytes() // x.element_size(), dtype=x.dtype, device="cuda")
    twins = [base.clone().as_strided(x.shape, x.stride(), x.storage_offset()).copy_(x) for _ in range(2)]
    torch._dynamo.reset()
    assert_same(fusion_core.compile(function)(twins[0]), function(twins[1]))
    whole = [t.as_strided((base.numel(),), (1,), 0) for t in twins]
    torch.testing.assert_close(whole[0], whole[1], rtol=0, atol=1e-5)
