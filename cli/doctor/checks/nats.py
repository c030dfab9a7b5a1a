"""Whether NATS has its stream, consumers, certificates and connected services. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from cryptography import x509

from cli.cluster.unavailable import Unavailable
from cli.doctor.findings import Check, Finding
from cli.doctor.snapshot import InstallationSnapshot
from cli.inside.flow_snapshot import CertificateSnapshot, FlowSnapshot, FlowUnavailable, StreamSnapshot
from cli.lines import format_names
from libs.common.contract.subjects import STREAM

_ALMOST_FULL: Final = 0.9
_OF_THE_SERVER: Final = "nats-server"


def check_nats(seen: InstallationSnapshot) -> Check:
    """Check NATS, as seen with the reader's key."""
    if seen.installation.is_all_in_one:
        return "all services run in one process, without NATS"
    yield from _check_authority(seen)
    yield from _check_flow(seen)
    yield from _check_server_certificate(seen)
    flow = seen.flow_snapshot
    if flow is None or flow.stream is None:  # reported as a finding
        return ""
    return (
        f"stream {STREAM} has {flow.stream.messages:,} messages and {len(flow.queues)} durable consumers; "
        f"active: {', '.join(one.service for one in flow.services if one.is_present)}"
    )


def _check_flow(seen: InstallationSnapshot) -> Iterator[Finding]:
    kubectl, prefix = seen.installation.kubectl, seen.installation.prefix
    if isinstance(seen.flow, FlowUnavailable):
        yield Finding.unknown(
            f"the state of NATS is unknown: {seen.flow.reason}",
            "check that NATS and the watcher run, and that you may exec:",
            f"{kubectl} auth can-i create pods/exec",
        )
        return
    flow, logs = seen.flow, f"{kubectl} logs deployment/{prefix}-watcher --tail 20"
    if flow.stream is None:
        yield Finding.wrong(
            f"stream {STREAM} does not exist, so no service receives events",
            "the leading watcher creates it; its log gives the reason:",
            logs,
        )
        return
    running = seen.installation.services
    gone = [queue.name for queue in flow.queues if not queue.exists and queue.service in running]
    if gone:
        yield Finding.wrong(
            f"missing durable consumers: {format_names(gone)}",
            "the watcher creates them at its next resync:",
            logs,
        )
    if flow.leading is None:  # a heartbeat expires by the clock of NATS
        yield Finding.wrong(
            "no leader heartbeat: all other services pause", "see why no watcher leads:", logs
        )
    yield from _find_missing_consumers(seen, flow)
    yield from _check_stream(seen, flow.stream)
    if flow.dead_count:
        yield Finding.wrong(
            f"{flow.dead_count:,} dead letters: messages that no service could parse or process",
            "see docs/runbooks/TalosCCMDeadLetters.md; to list them:",
            "talos-ccm status",
        )


def _find_missing_consumers(seen: InstallationSnapshot, flow: FlowSnapshot) -> Iterator[Finding]:
    """Yield installed services that have a consumer and do not pull from it."""
    running, prefix = seen.installation.services, seen.installation.prefix
    for one in flow.services:
        there = one.service in running and any(q.service == one.service and q.exists for q in flow.queues)
        if one.is_present is False and there:
            yield Finding.wrong(
                f"{one.service} is not active: {one.why}",
                "read its log:",
                f"{seen.installation.kubectl} logs deployment/{prefix}-{one.service} --tail 20",
            )


def _check_stream(seen: InstallationSnapshot, stream: StreamSnapshot) -> Iterator[Finding]:
    if stream.max_bytes and stream.bytes > _ALMOST_FULL * stream.max_bytes:
        yield Finding.wrong(
            f"stream {STREAM} is {100 * stream.bytes // stream.max_bytes} % full",
            "increase nats.storeMebibytes in the chart's values (20 kB for each node and pending request):",
            seen.installation.reapply_command,
        )


def _check_authority(seen: InstallationSnapshot) -> Iterator[Finding]:
    """Check the certificate of the authority, the only one without automatic renewal.

    The keeper renews the server certificate.
    """
    if seen.installation.nats is None:
        return
    name, kubectl = f"{seen.installation.prefix}-nats-ca", seen.installation.kubectl
    match seen.authority:
        case Unavailable() as unavailable:
            yield Finding.unavailable(f"the CA of NATS (ConfigMap {name}) was not read", unavailable)
        case None:
            yield Finding.wrong(
                f"ConfigMap {name} with ca.crt does not exist, so no service can verify NATS",
                "the init container of NATS creates it; its log gives the reason:",
                f"{kubectl} logs {seen.installation.nats.kind.lower()}/{seen.installation.nats.name} "
                "--container bootstrap --tail 20",
            )
        case str() as pem:
            yield from _check_expiry(pem, seen.at, name, kubectl)


def _check_server_certificate(seen: InstallationSnapshot) -> Iterator[Finding]:
    """Check the certificate that the server presents to clients."""
    flow, workload = seen.flow_snapshot, seen.installation.nats
    shown = [one for one in (flow.certificates if flow else ()) if one.name == _OF_THE_SERVER]
    for one in (one for one in shown if one.is_overdue(seen.at)):
        problem = f"the certificate of the NATS server {_describe_expiry(one, seen.at)} and was not renewed"
        if workload is None:
            yield Finding.wrong(
                problem, "this NATS server is not part of the chart: replace its certificate and reload it"
            )
        else:
            pods = f"{workload.kind.lower()}/{workload.name}"
            yield Finding.wrong(
                problem,
                "its keeper container renews it, and its log says why it does not "
                "(docs/runbooks/TalosCCMNATSCertificateExpiring.md):",
                f"{seen.installation.kubectl} logs {pods} --container keeper --tail 20",
            )


def _check_expiry(pem: str, at: datetime, name: str, kubectl: str) -> Iterator[Finding]:
    try:
        ends = min(c.not_valid_after_utc for c in x509.load_pem_x509_certificates(pem.encode()))
    except ValueError as error:
        yield Finding.wrong(
            f"ConfigMap {name} contains no certificate: {error}",
            "delete it and its Secret; the keeper of NATS creates both again:",
            f"{kubectl} delete secret,configmap {name}",
        )
        return
    authority = CertificateSnapshot(name="nats-authority", expires_at=ends)
    if authority.is_overdue(at):
        yield Finding.wrong(
            f"the CA certificate of NATS {_describe_expiry(authority, at)}, and is not renewed automatically",
            "delete its Secret; the keeper creates a new one (open connections stay):",
            f"{kubectl} delete secret {name}",
        )


def _describe_expiry(one: CertificateSnapshot, at: datetime) -> str:
    return f"{'expired' if one.expires_at < at else 'expires'} on {one.expires_at:%Y-%m-%d}"
