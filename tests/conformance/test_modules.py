"""Every module forward and backward, in training and evaluation mode; every optimizer for three steps.

Without `--conformance-full` only the first inputs and settings of each.
"""

import pytest
from module_cases import MODULES, OPTIMIZERS, ModuleCase, OptimizerCase, implementations
from module_judge import assert_known

DEVICE = "cpu"
FEW = 3
OPTIMIZER_CASES = [(name, way) for name in OPTIMIZERS for way in implementations(name, DEVICE)]


@pytest.fixture
def most(request):
    """How many inputs or settings are judged."""
    return 10**6 if request.config.getoption("--conformance-full") else FEW


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODULES)
def test_module(name, training, most):
    assert_known(ModuleCase(name, training, 0, most), DEVICE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "way"), OPTIMIZER_CASES)
def test_optimizer(name, way, most):
    assert_known(OptimizerCase(name, way, 0, most), DEVICE)
