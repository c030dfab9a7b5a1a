"""docs/stuck-nodes.md lists every fault of `explain node`, in its words, and every fault can occur."""

import ast
import re
from typing import Final, get_args

import pytest

from cli.explain.node.fault_texts import FAULT_BY_BLOCK_REASON, FAULT_BY_KIND, FAULT_TEXTS
from libs.common.contract.machine import FaultKind
from services.labeler.blocker import FAULT_REASONS
from tests.architecture.sources import ROOT, sources

PAGE: Final = (ROOT / "docs" / "stuck-nodes.md").read_text()
GIVEN: Final = {
    "node": "web-5",
    "ip": "10.0.0.5",
    "said": "...",
    "namespace": "kube-system",
    "csr": "csr-x7k2p",
}


def constants(module: str) -> set[str]:
    [source] = [each for each in sources("cli", "services") if each.module == module]
    return {
        node.value for node in source.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize("fault", FAULT_TEXTS)
def test_the_page_tells_it_in_the_words_of_the_command(fault: str):
    section = PAGE.partition(f"\n### `{fault}`\n")[2].partition("\n### ")[0]
    words = FAULT_TEXTS[fault]
    assert f"\n{words.cause.format(**GIVEN)}\n{words.fix.format(**GIVEN)}\n" in section


def test_the_page_has_no_other_fault():
    assert sorted(re.findall(r"^### `([\w-]+)`$", PAGE, re.MULTILINE)) == sorted(FAULT_TEXTS)


def test_each_fault_is_told_by_somebody():
    code = constants("cli.explain.node.node_verdict") | constants("cli.explain.node.initialization_faults")
    told = code | set(FAULT_BY_KIND.values()) | set(FAULT_BY_BLOCK_REASON.values())
    assert set(FAULT_TEXTS) <= told


def test_whatever_a_machine_or_the_labeler_calls_a_fault_has_its_words():
    assert set(FAULT_BY_KIND) == set(get_args(FaultKind))
    said = {
        each for each in constants("services.labeler.blocker") if re.fullmatch(r"([A-Z][A-Za-z]+){2,}", each)
    }
    assert said - set(FAULT_REASONS.values()) == set(FAULT_BY_BLOCK_REASON)
    assert {*FAULT_BY_KIND.values(), *FAULT_BY_BLOCK_REASON.values()} <= set(FAULT_TEXTS)


@pytest.mark.parametrize("fault", FAULT_TEXTS)
def test_its_words_are_a_sentence_and_a_line(fault: str):
    for text in (FAULT_TEXTS[fault].cause, FAULT_TEXTS[fault].fix):
        told = text.format(**GIVEN)
        assert "\n" not in told
        assert len(told) <= 220
        assert told.endswith((".", "restart"))
