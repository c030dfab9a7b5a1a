"""Each mutant patches functions that exist, and every invariant has one."""

import os
import subprocess
import sys

import pytest

from libs.testbed.service_start import ROOT
from tests.chaos.invariants import END_STATE, INVARIANTS, NO_CREDENTIAL
from tests.chaos.mutants import DEFECT, MUTANTS, Mutant, list_covered_invariants

# kube-apiserver rejects every change of podCIDRs, so no defect of the services can cause one.
PREVENTED = {"pod CIDRs never change"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_defect_of_a_mutant_finds_what_it_patches(mutant: Mutant):
    program = "from tests.chaos.defects import install; install()"
    environment = os.environ | {"PYTHONPATH": str(ROOT), DEFECT: mutant.name}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)


def test_every_invariant_has_a_mutant():
    assert list_covered_invariants() == {*INVARIANTS, END_STATE, NO_CREDENTIAL} - PREVENTED
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 10
