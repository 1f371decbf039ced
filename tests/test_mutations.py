"""The list of seeded faults fits the sources: the run itself is long, and tells too late that a line has moved."""

from pathlib import Path

import pytest

from tests.mutations import checker, core, mechanisms, runtime, surroundings

ROOT = Path(__file__).resolve().parents[1]
MUTATIONS = [mutation for part in (checker, core, mechanisms, runtime, surroundings) for mutation in part.MUTATIONS]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_seeded_fault_changes_one_place_and_names_tests_that_exist(mutation):
    assert (ROOT / mutation.file).read_text("utf-8").count(mutation.old) == 1 and mutation.old != mutation.new
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutation.tests.split())


def test_no_two_faults_share_a_name():
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
