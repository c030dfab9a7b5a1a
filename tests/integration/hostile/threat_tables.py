"""The tables of docs/threat-model.md: one row for each attempt, with its outcome and the file of its test."""

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from tests.integration.hostile.attempts import Attempt
from tests.integration.hostile.covered_attempts import (
    COVERED_CONSOLE_ATTEMPTS,
    COVERED_CREDENTIAL_ATTEMPTS,
    COVERED_MACHINE_ATTEMPTS,
    COVERED_POD_ATTEMPTS,
    COVERED_SERVICE_ATTEMPTS,
    CoveredAttempt,
)
from tests.integration.hostile.node_attempts import NODE_ATTEMPTS
from tests.integration.hostile.pod_attempts import POD_ATTEMPTS
from tests.integration.hostile.request_attempts import REQUEST_ATTEMPTS
from tests.integration.hostile.service_attempts import SERVICE_ATTEMPTS
from tests.integration.hostile.talos_attempts import TALOS_ATTEMPTS
from tools.generated_part import replace_part

PAGE: Final = Path(__file__).parents[3] / "docs/threat-model.md"
COMMAND: Final = "make threat-model"


class _Table(NamedTuple):
    test: str  # the file that carries out the attempts
    attempts: Iterable[Attempt[Any]]
    covered: Iterable[CoveredAttempt] = ()


TABLES: Final = {
    "requests of a hostile kubelet": _Table("test_hostile_machine", REQUEST_ATTEMPTS),
    "writes of a hostile kubelet": _Table("test_hostile_machine", NODE_ATTEMPTS),
    "answers of a hostile machine": _Table("test_hostile_machine", TALOS_ATTEMPTS, COVERED_MACHINE_ATTEMPTS),
    "use of a stolen NATS key": _Table("test_hostile_service", SERVICE_ATTEMPTS, COVERED_SERVICE_ATTEMPTS),
    "use of a cloud's credential": _Table("test_hostile_service", (), COVERED_CREDENTIAL_ATTEMPTS),
    "a pod without a key": _Table("test_hostile_pod", POD_ATTEMPTS, COVERED_POD_ATTEMPTS),
    "use of an exposed console": _Table("test_hostile_pod", (), COVERED_CONSOLE_ATTEMPTS),
}


def render_threat_model(text: str) -> str:
    """Return the page with all its tables."""
    for name, table in TABLES.items():
        text = replace_part(text, name, "".join(_list_lines(table)), command=COMMAND)
    return text


def _list_lines(table: _Table) -> Iterator[str]:
    yield "\n| attempt | outcome | test |\n|---|---|---|\n"
    for attempt in table.attempts:
        yield f"| {attempt.name} | {attempt.outcome} | `{table.test}` |\n"
    for covered in table.covered:
        test = PurePosixPath(covered.test.partition("::")[0]).stem
        yield f"| {covered.name} | {covered.outcome} | `{test}` |\n"
    yield "\n"


if __name__ == "__main__":
    PAGE.write_text(render_threat_model(PAGE.read_text()))
