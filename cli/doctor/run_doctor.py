"""Gathers, evaluates and prints; writes nothing to the cluster."""

from rich.console import Console

from cli.doctor.as_json import diagnosis_to_json
from cli.doctor.diagnosis import diagnose
from cli.doctor.from_cluster import DoctorQuery, gather_installation
from cli.doctor.installation_snapshot import InstallationSnapshot
from cli.doctor.text import format_diagnosis
from cli.lines import print_json, print_lines


def run_doctor(source: DoctorQuery, only: frozenset[str], *, as_json: bool) -> int:
    """Print the diagnosis and return the exit status. Raises ClusterUnavailable."""
    seen = gather_installation(source, only)
    diagnosis = diagnose(seen, only)
    if as_json:
        print_json(diagnosis_to_json(diagnosis, seen.installation))
    else:
        print_lines(format_diagnosis(diagnosis, _format_location(seen)), Console(highlight=False))
    return diagnosis.exit_status


def _format_location(seen: InstallationSnapshot) -> str:
    installation = seen.installation
    services = ", ".join(installation.services)
    if installation.assumed_reason:
        return f"Namespace {installation.namespace}, assumed from the chart: {services}"
    beside = "".join(
        f"; other installations: --namespace {other.namespace} --release {other.release}"
        for other in seen.others
    )
    head = f"Release {installation.release or '(none)'} in namespace {installation.namespace}"
    return f"{head}: {services}{beside}"
