"""The text output of every recorded case: in a pipe, and on terminals."""

import re
from collections.abc import Iterator
from typing import Final, Protocol

import pytest
from click.testing import CliRunner

from cli.__main__ import main
from tests.cli_screen import read_screens
from tests.unit.cli.explain.csr import test_explain
from tests.unit.cli.explain.node import test_node
from tests.unit.cli.status import test_flow
from tests.unit.cli.status.ipam import test_ipam


class Screen(Protocol):
    """Returns the output on a terminal of that width; 0 = in a pipe."""

    def __call__(self, width: int, /) -> str: ...


def screens() -> Iterator[tuple[tuple[str, str], Screen]]:
    """Yield the kind and the name of each recorded text, and the screen."""
    for name in test_explain.EVIDENCE:
        csr = test_explain.explained(name)
        yield ("explain-csr", name), lambda width, csr=csr: test_explain.shown(csr, width or None)
    for name in test_node.EVIDENCE:
        node = test_node.explained(name)
        yield ("explain-node", name), lambda width, node=node: test_node.shown(node, width or None)
    for name, evidence in test_flow.CASES.items():
        yield ("status", name), lambda width, evidence=evidence: test_flow.shown(evidence, width=width)
    for name, status in test_ipam.CASES.items():
        yield ("status-ipam", name), lambda width, status=status: test_ipam.shown(status, width=width)


SCREENS: Final = dict(screens())


@pytest.mark.parametrize("kind", dict.fromkeys(kind for kind, _ in SCREENS))
def test_in_a_pipe_the_output_is_the_recorded_text(kind: str):
    assert {name: screen(0) for (of, name), screen in SCREENS.items() if of == kind} == read_screens(kind)


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("case", SCREENS, ids=" ".join)
def test_on_a_terminal_no_line_is_too_wide_and_none_has_control_characters(case: tuple[str, str], width: int):
    text = SCREENS[case](width)
    assert max(map(len, text.splitlines())) <= width
    assert text.replace("\n", "").isprintable()


COMMANDS: Final = ("config check", "doctor", "explain csr", "explain node", "render", "status", "status ipam")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns_and_has_exit_statuses_and_examples_in_lines_of_their_own(command: str):
    text = CliRunner().invoke(main, [*command.split(), "--help"], terminal_width=80).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^  Exit status:\n    0  .+\n(    +.+\n)*    2  .+\n", text, re.MULTILINE)
    assert re.search(r"^  Examples:\n    talos-ccm .+\n    talos-ccm .+\n", text, re.MULTILINE)
