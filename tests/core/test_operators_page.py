"""docs/operators.md says what the rows say."""

import json

import pytest
import torch
from operators import PAGE, SURVEY, page


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="torch's own lists differ by release")
def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(json.loads(SURVEY.read_text())), "run tests/conformance/operators.py"
