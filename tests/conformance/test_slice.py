"""A slice of the operator database that is small enough for every change: each operator in one form, two samples.

`python tests/conformance/run.py` judges all of it.
"""

import pytest
import torch
from opinfo_cases import FORMS, OPS, Case, has_form, samples
from opinfo_judge import judge
from opinfo_known import KNOWN

SAMPLES = 2
DEVICE = "cpu"


def case_of(position, name):
    """Operators take turns over the forms, so that every form meets every kind of operator."""
    dtypes = sorted(OPS[name].supported_dtypes(DEVICE), key=str)
    dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
    forms = [f for f in FORMS if has_form(name, dtype, f, DEVICE)]
    case = Case(name, dtype, forms[position % len(forms)], 0, SAMPLES)
    torch.manual_seed(0)
    return case.limited(len(samples(case, DEVICE)))


HERE = [name for name in OPS if OPS[name].supported_dtypes(DEVICE)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("position", "name"), list(enumerate(HERE)), ids=HERE)
def test_operator(position, name):
    result = judge(case_of(position, name), DEVICE)
    known = [key for key in KNOWN if result.key.startswith(key)]
    assert not result.ours
    assert bool(result.shared) == bool(known), result.shared or "passes now: remove it from opinfo_known.py"
