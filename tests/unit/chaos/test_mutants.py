"""Each mutant still applies to the code, and every invariant has one."""

import ast
from pathlib import Path

import pytest

from chaos.invariants import END_STATE, INVARIANTS, NO_CREDENTIAL
from chaos.mutants import MUTANTS, Change, Mutant, MutantOutdated, list_covered_invariants, write_tree

# kube-apiserver rejects every change of podCIDRs, so no defect of the services can cause one.
PREVENTED = {"pod CIDRs never change"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_differs_from_the_code_and_is_python(mutant: Mutant, tmp_path: Path):
    write_tree(mutant, tmp_path)
    for change in mutant.changes:
        text = (tmp_path / change.file).read_text()
        assert change.new in text
        ast.parse(text)


def test_every_invariant_has_a_mutant():
    assert list_covered_invariants() == {*INVARIANTS, END_STATE, NO_CREDENTIAL} - PREVENTED
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 10


def test_a_text_that_is_gone_from_the_code_is_an_error(tmp_path: Path):
    change = Change("services/csr/decide.py", "a text that no file has", "")
    with pytest.raises(MutantOutdated, match="has 0 times"):
        write_tree(Mutant(name="old", invariant=END_STATE, changes=(change,)), tmp_path)
