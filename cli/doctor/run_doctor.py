"""Reads, evaluates and prints; writes nothing to the cluster."""

from cli.cluster.kube_reader import run_gathering
from cli.cluster.query import ClusterQuery
from cli.doctor.diagnosis import diagnose, list_parts
from cli.doctor.read_installation import read_installation
from cli.doctor.snapshot import InstallationSnapshot
from cli.doctor.text import format_diagnosis
from cli.lines import print_result


def run_doctor(query: ClusterQuery, only: frozenset[str], output: str) -> int:
    """Print the diagnosis and return the exit status. Raises ClusterUnavailable."""
    seen = run_gathering(read_installation(query, list_parts(only)))
    diagnosis = diagnose(seen, only)
    print_result(output, format_diagnosis(diagnosis, _format_location(seen)), diagnosis)
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
