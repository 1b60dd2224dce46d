"""Tiny models of `transformers` on a CUDA device: forward, training, and generation with a static cache."""

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from model_cases import MODELS, WAYS, ModelCase
from opinfo_judge import judge

pytestmark = pytest.mark.gpu


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_model(name, way):
    result = judge(ModelCase(name, way), "cuda")
    assert result.passed == 1, result
