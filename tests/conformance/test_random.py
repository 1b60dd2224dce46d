"""A slice of the random programs: the same ones at every run. `find.py` searches among new ones."""

import pytest
from find import failed_checks, verdict_of
from hypothesis import HealthCheck, Phase, given, settings
from random_programs import sources

from pytest_fusealias.model import Outcome

PROGRAMS = 60


@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=PROGRAMS,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)
@given(source=sources())
def test_random_program(source):
    verdict = verdict_of(source, "fusion_core")
    if isinstance(verdict, str) or verdict.outcome is Outcome.PASS:
        return
    failure = failed_checks(verdict)
    is_dynamos = bool(
        failed_checks(verdict_of(source, "eager"))
    )  # its graph is wrong before a backend sees it
    assert is_dynamos or not failure, source.as_test(failure)


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_backend_is_found():
    """With the seed of the slice, aot_eager gets some program wrong: the search can fail."""
    found = []

    @settings(
        max_examples=PROGRAMS,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )
    @given(source=sources())
    def search(source):
        if not found:
            failure = failed_checks(verdict_of(source, "aot_eager"))
            if failure:
                found.append(source.as_test(failure))

    search()
    assert found
    assert "def test_found():" in found[0]
