"""Every broken backend is caught by the check that fits and by no other; correct backends pass the same programs."""

import mutants
import pytest

from pytest_fusealias.check import check
from pytest_fusealias.model import CHECKS, Outcome, Spec

CORRECT = ("eager", "aot_eager", "inductor", "fusion_core")


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: m.name)
def test_mutant_is_caught(mutant):
    verdict = check(mutant.make, Spec(backend=mutant.backend, **mutant.spec))
    fired = {c.check for c in verdict.failures}
    assert mutant.must <= fired, verdict
    assert fired <= mutant.must | mutant.may, verdict
    assert not verdict.refused


@pytest.mark.parametrize("backend", CORRECT)
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: m.name)
def test_correct_backend_passes(mutant, backend):
    verdict = check(mutant.make, Spec(backend=backend, **mutant.spec))
    expected = Outcome.FAIL if backend in mutant.wrong_backends else Outcome.PASS
    assert verdict.outcome is expected, verdict


def test_every_check_has_a_mutant():
    assert {check for m in mutants.MUTANTS for check in m.must} == set(CHECKS)
