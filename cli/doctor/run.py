"""Gathers, judges, shows. Writes to no cluster."""

from rich.console import Console

from cli.doctor.as_json import diagnosis_json
from cli.doctor.from_cluster import Source, gather
from cli.doctor.judging import diagnose
from cli.doctor.seen import Seen
from cli.doctor.text import of_diagnosis
from cli.lines import print_json, print_lines


def examine(source: Source, only: frozenset[str], *, as_json: bool) -> int:
    """Show it; the exit status. Raises CannotAsk."""
    seen = gather(source, only)
    diagnosis = diagnose(seen, only)
    if as_json:
        print_json(diagnosis_json(diagnosis, seen.installation))
    else:
        print_lines(of_diagnosis(diagnosis, _where(seen)), Console(highlight=False))
    return diagnosis.exit_status


def _where(seen: Seen) -> str:
    installation = seen.installation
    services = ", ".join(installation.services)
    if installation.assumed:
        return f"Namespace {installation.namespace}, as the chart would have it: {services}"
    beside = "".join(
        f"; beside it: --namespace {other.namespace} --release {other.release}" for other in seen.others
    )
    head = f"Release {installation.release or '(none)'} in namespace {installation.namespace}"
    return f"{head}: {services}{beside}"
