"""docs/certificates.md says what is true: its tables name every check, flag and metric, and no others."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from cli.explain.csr.advice import _AFTER_A_DENIAL, _ENDS_A_WAIT
from libs.common.contract.signing_request import REQUEST_LIMIT
from libs.common.service.waiting_objects import LONG_WAIT_SECONDS
from libs.common.settings.read_settings import list_options
from services.csr.certificate_request import MAX_SANS
from services.csr.public_keys import _CURVES, _RSA_BITS
from services.csr.rate_limiter import BURST
from services.csr.request_checks import _PASSED_TEXTS
from services.csr.settings import CsrSettings
from services.metadata.requests.request_state import FRESHNESS_SECONDS
from services.watcher.kinds import MAX_PENDING_PER_REQUESTER
from tests.architecture.sources import ROOT, sources

PAGE: Final = (ROOT / "docs" / "certificates.md").read_text()
NAMERS: Final[dict[str, str | int]] = {
    "Check": "name",
    "_make_undecided": 0,
    "_check_rivals": 1,
}  # where each has a check's name


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def named(text: str) -> list[str]:
    """What stands in the first column of its tables."""
    return re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)


def checks_in(*modules: str) -> Iterator[str]:
    """Every name that this code gives a check."""
    for source in sources("services/csr"):
        if source.module.removeprefix("services.csr.") not in modules:
            continue
        for node in source.nodes:
            place = NAMERS.get(getattr(node.func, "id", "")) if isinstance(node, ast.Call) else None
            if not isinstance(node, ast.Call) or place is None:
                continue
            found = {keyword.arg: keyword.value for keyword in node.keywords}
            value = found.get(place) if isinstance(place, str) else node.args[place]
            if isinstance(value, ast.Constant):
                yield str(value.value)


def _waits_of_judge() -> set[str]:
    """Reasons of waits that concern what csr itself knows, but for the budget's, which no operator ends."""
    [module] = (
        source for source in sources("services/csr") if source.module == "services.csr.request_evaluator"
    )
    calls = [node for node in module.nodes if isinstance(node, ast.Call)]
    waits = (call for call in calls if getattr(call.func, "id", "") == "Wait")
    reasons = [word.value for call in waits for word in call.keywords if word.arg == "reason"]
    return {str(each.value) for each in reasons if isinstance(each, ast.Constant)} - {"node"}


def test_the_tables_name_each_check_of_the_code_and_no_other():
    of_request, by_machine = section("What is checked").split("By the machine", maxsplit=1)
    assert named(of_request) == ["requester", *_PASSED_TEXTS]
    assert set(checks_in("decide")) == {"requester", "request"}
    reserved = set(checks_in("endpoint_checks"))
    assert set(named(by_machine)) == {*checks_in("attestation"), *reserved, *_waits_of_judge()}
    by_node_object = {*checks_in("node_object_checks"), "pod-cidrs"}  # attestation.py names the last one
    assert set(named(section("Without Talos"))) == {*by_node_object, *reserved}


def test_whatever_is_waited_for_has_an_advice_and_no_advice_is_for_nothing():
    waits = {*checks_in("attestation"), *checks_in("node_object_checks"), *checks_in("endpoint_checks")}
    assert set(_ENDS_A_WAIT) == waits
    assert set(_AFTER_A_DENIAL) <= {*waits, *_PASSED_TEXTS}


def test_every_flag_and_every_metric_is_there():
    flags = {f"--{each.flag.name}" for each in list_options(CsrSettings) if each.flag.name.startswith("csr-")}
    told = set(re.findall(r"`(--csr-[\w-]+)`", section("Flags, metrics, rights")))
    assert told == flags
    metrics = (ROOT / "libs" / "common" / "observability" / "metrics.py").read_text()
    assert set(re.findall(r"^\| `(talosccm_\w+)", PAGE, re.MULTILINE)) == set(
        re.findall(r'"(talosccm_csr_\w+)"', metrics)
    )


def test_its_numbers_are_those_of_the_code():
    words = " ".join(PAGE.split())
    for text in (
        f"at most {REQUEST_LIMIT // 1024} KiB, {MAX_SANS} names",
        f"RSA of {_RSA_BITS.start} to {_RSA_BITS.stop - 1} bits",
        f"no earlier than {FRESHNESS_SECONDS:g} s before the request",
        (
            f"more than {MAX_PENDING_PER_REQUESTER} of them, "
            f"csr receives only the newest {MAX_PENDING_PER_REQUESTER}"
        ),
        f"After {BURST} answers in a row",
        f"once it has waited {LONG_WAIT_SECONDS:g} s for the same thing",
    ):
        assert text in words
    assert all(curve in words for curve in _CURVES.values())
