"""Tiny models forward, in training and in generation with a static cache: equal to eager by all checks.

Without `--conformance-full` one model each way.
"""

import pytest
from model_cases import MODELS, WAYS, ModelCase
from opinfo_judge import judge

pytest.importorskip("transformers", reason="transformers is not installed")

FEW = {("llama", "generate"), ("gpt_neox", "train"), ("mamba", "forward")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_model(name, way, request):
    if (name, way) not in FEW and not request.config.getoption("--conformance-full"):
        pytest.skip("judged with --conformance-full")
    result = judge(ModelCase(name, way), "cpu")
    assert result.passed == 1, result
