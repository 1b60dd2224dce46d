"""Every module forward and backward, in training and evaluation mode; every optimizer for three steps."""

import pytest
from module_cases import MODULES, OPTIMIZERS, ModuleCase, OptimizerCase, implementations
from opinfo_judge import judge
from opinfo_known import KNOWN_MODULES

DEVICE = "cpu"
OPTIMIZER_CASES = [(name, way) for name in OPTIMIZERS for way in implementations(name, DEVICE)]


def assert_known(result):
    known = {text.partition(":")[0] for text in result.shared}
    expected = {key for key in KNOWN_MODULES if key.startswith(result.key.rpartition("/")[0] + "/")}
    assert not result.ours
    assert known == expected, result.shared or "passes now: remove it from opinfo_known.py"
    assert result.passed + len(known) + len(result.not_judged) == result.samples


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODULES)
def test_module(name, training):
    assert_known(judge(ModuleCase(name, training).counted(DEVICE), DEVICE))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "way"), OPTIMIZER_CASES)
def test_optimizer(name, way):
    assert_known(judge(OptimizerCase(name, way).counted(DEVICE), DEVICE))
