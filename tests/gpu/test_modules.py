"""Every module and every optimizer on a CUDA device.

Without `--conformance-full` only the first input and setting of each.
"""

import pytest
from module_cases import MODULES, OPTIMIZERS, ModuleCase, OptimizerCase, implementations
from module_judge import assert_known

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

WAYS = [(name, way) for name in OPTIMIZERS for way in implementations(name, "cuda")]


@pytest.fixture
def most(request):
    """How many inputs or settings are judged."""
    return 10**6 if request.config.getoption("--conformance-full") else 1


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODULES)
def test_module(name, training, most):
    assert_known(ModuleCase(name, training, 0, most), "cuda")


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_optimizer(name, way, most):
    assert_known(OptimizerCase(name, way, 0, most), "cuda")
