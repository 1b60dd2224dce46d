"""A second process compiles no kernel where the first one's are kept."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

STEP = """
import torch, fusion_core
def step(p, m, g):
    m.mul_(0.9).add_(g, alpha=0.1)
    p.sub_(m * 0.1)
    return torch.softmax(p, -1)
a = [torch.ones(64, 1000, device="cuda") for _ in range(3)]
compiled = torch.compile(step, backend="fusion_core")
for _ in range(2):
    result = compiled(*a)
x = torch.ones(100, 100, device="cuda", requires_grad=True)
torch.compile(lambda x: torch.tanh(x).sum() * 2, backend="fusion_core")(x).backward()
print(result.sum().item(), x.grad.sum().item())
"""


def test_warm_start(tmp_path):
    def run():
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", STEP], check=True, text=True, stdout=subprocess.PIPE,
            env=os.environ | {"FUSION_CORE_KERNEL_CACHE": str(tmp_path)},
        )  # fmt: skip
        (index,) = tmp_path.rglob("db.csv")
        return done.stdout, index.read_text().splitlines()[1:]

    printed, kernels = run()
    assert len(kernels) >= 3
    again, after = run()
    assert again == printed
    assert after == kernels
