"""Whether the Talos credential exists, suffices and works, and whether the clocks agree. Pure."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from cli.cluster.unavailable import AbsentObject, RemoteClock, Unavailable
from cli.doctor.check_report import CheckFinding
from cli.doctor.findings import report_ok, report_unavailable, report_unknown, report_wrong
from cli.doctor.installation_snapshot import InstallationSnapshot
from cli.doctor.talos_credential_report import ProbeResult, TalosCredentialReport

READER: Final = "os:reader"
_MORE_THAN_READER: Final = ("os:admin", "os:operator", "os:etcd:backup")
_TOLERATED: Final = timedelta(seconds=5)
_ACCESS: Final = "machine.features.kubernetesTalosAPIAccess"
_PATCH: Final = (
    "talosctl --nodes CONTROL_PLANES patch machineconfig --patch @deploy/talos/controlplane-patch.yaml"
)


def check_credential(seen: InstallationSnapshot) -> Iterator[CheckFinding]:
    """Check that Talos writes the credential that metadata mounts."""
    name, namespace = seen.installation.talos_account, seen.installation.namespace
    if not name:
        yield report_ok("machines are not queried (talos.enabled=false), so no credential is needed")
        return
    where = f"ServiceAccount.talos.dev {namespace}/{name}"
    match seen.talos_account:
        case Unavailable() as told:
            yield report_unavailable(f"{where} was not read", told)
        case AbsentObject() if not seen.talos_kind:
            yield report_wrong(
                f"the cluster has no kind ServiceAccount of talos.dev: no control plane has {_ACCESS}",
                (
                    "patch the control planes (from Talos 1.14 on, with KubeletConfig: "
                    "controlplane-patch-1.14.yaml), then apply the chart again:"
                ),
                _PATCH,
                seen.installation.reapply_command,
            )
        case AbsentObject():
            yield report_wrong(
                f"{where} does not exist", "create it again:", seen.installation.reapply_command
            )
        case account:
            yield from _check_service_account(seen, where, account.status.failure_reason, account.spec.roles)
    if seen.talos_service is False:
        yield report_wrong(
            "Service default/talos does not exist; pods reach the Talos API through it",
            f"control planes create it if {_ACCESS} is enabled:",
            _PATCH,
        )


def _check_service_account(
    seen: InstallationSnapshot, where: str, failure: str, roles: tuple[str, ...]
) -> Iterator[CheckFinding]:
    namespace = seen.installation.namespace
    if failure:
        yield report_wrong(
            f"Talos rejects {where}: {failure}",
            (
                f"in the machine config of the control planes, add {namespace} to "
                f"{_ACCESS}.allowedKubernetesNamespaces, and {', '.join(roles) or READER} to allowedRoles:"
            ),
            _PATCH,
        )
        return
    more = [role for role in roles if role in _MORE_THAN_READER]
    if more:
        yield report_wrong(
            (
                f"{where} has {', '.join(more)}: {READER} suffices, and with more an attacker who controls "
                "metadata can change machines"
            ),
            "apply it again as in the chart:",
            seen.installation.reapply_command,
        )
    elif READER not in roles:
        yield report_wrong(
            f"{where} has {', '.join(roles) or 'no role'}, but machines require {READER}",
            "apply it again as in the chart:",
            seen.installation.reapply_command,
        )
    else:
        yield report_ok(f"{where} has the role {READER}, and Talos reports no failure")


def check_access(seen: InstallationSnapshot) -> Iterator[CheckFinding]:
    """Check the answers of the Talos API to metadata's pod."""
    if not seen.installation.talos_account:
        yield report_ok("machines are not queried (talos.enabled=false)")
        return
    if isinstance(seen.talos, Unavailable):
        yield report_unavailable("metadata's pod was not queried", seen.talos)
        return
    found = list(_check_report(seen, seen.talos))
    yield from found
    if not found:
        yield report_ok(_describe_access(seen.talos))


def _check_report(seen: InstallationSnapshot, talos: TalosCredentialReport) -> Iterator[CheckFinding]:
    kubectl, name = seen.installation.kubectl, seen.installation.talos_account
    if talos.problem:
        yield report_wrong(
            f"metadata's pod has no usable credential: {talos.problem}",
            "Talos renews it if its ServiceAccount is valid and the clocks agree:",
            f"{kubectl} get serviceaccounts.talos.dev {name} --output yaml",
        )
        return
    if not set(talos.roles) & {READER, *_MORE_THAN_READER}:
        yield report_wrong(
            f"the credential has the roles {', '.join(talos.roles) or '(none)'}, but needs {READER}",
            f"add {READER} to allowedRoles of {_ACCESS}:",
            _PATCH,
        )
    silent = [one for one in talos.endpoints if one.fault]
    if silent:
        all_of_them = len(silent) == len(talos.endpoints)
        yield report_wrong(
            f"{'no endpoint' if all_of_them else 'not every endpoint'} answers: {_describe_faults(silent)}",
            (
                "endpoints must be control planes that the pod reaches on port 50000; set others with "
                "--talos-endpoints (values: services.metadata.extraArgs). To see the endpoints of the "
                "Service:"
            ),
            "kubectl --namespace default get endpointslices --selector kubernetes.io/service-name=talos",
        )
        if all_of_them:
            return
    mute = [one for one in talos.machines if one.fault]
    if mute:
        yield report_wrong(
            f"machines that do not answer: {_describe_faults(mute)}",
            "to see cause and fix for each node:",
            "talos-ccm explain node NAME",
        )


def _describe_access(talos: TalosCredentialReport) -> str:
    until = f", until {talos.not_after.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if talos.not_after else ""
    who = ", ".join(one.name or one.address for one in talos.machines)
    machines = f"; queried machines answer: {who}" if who else "; no Node has an address to query"
    count = len(talos.endpoints)
    endpoints = f"{count} endpoint{' answers' if count == 1 else 's answer'}"
    return f"role {', '.join(talos.roles)}{until}; {endpoints}{machines}"


def _describe_faults(asked: list[ProbeResult]) -> str:
    return "; ".join(f"{one.address}: {one.fault}" for one in asked[:3])


def check_clocks(seen: InstallationSnapshot) -> Iterator[CheckFinding]:
    """Check that the clocks of API server, pod and this computer agree, and the certificate with them."""
    if isinstance(seen.server_clock, Unavailable):
        yield report_unknown(
            f"the API server's time is unknown: {seen.server_clock.reason}", seen.server_clock.fix
        )
        return
    server = _compute_offset(seen.server_clock)
    apart = _excess_offset(server)
    if apart:
        yield report_wrong(
            (
                f"this computer's clock is {_format_seconds(apart)} "
                f"{'behind' if apart > timedelta() else 'ahead of'} the API server's"
            ),
            "correct one of them: otherwise certificates appear not yet valid, or expired:",
            "timedatectl status",
        )
    if isinstance(seen.pod_clock, RemoteClock):
        low, high = _compute_offset(seen.pod_clock)
        between = _excess_offset((low - server[1], high - server[0]))
        if between:
            ahead = "ahead of" if between > timedelta() else "behind"
            yield report_wrong(
                f"the clock of metadata's node is {_format_seconds(between)} {ahead} the API server's",
                "synchronize the clocks of the machines (machine.time.servers):",
                "talosctl --nodes CONTROL_PLANES time",
            )
            apart = apart or between
        if isinstance(seen.talos, TalosCredentialReport):
            yield from _check_certificate(seen.talos, seen.at + server[0])
    if not apart:
        who = ("API server, metadata's node and this "
            "computer") if isinstance(seen.pod_clock, RemoteClock) else (
            "API server and this computer"
        )  # fmt: skip
        yield report_ok(f"{who} agree within {_TOLERATED.seconds} s")


def _check_certificate(talos: TalosCredentialReport, now: datetime) -> Iterator[CheckFinding]:
    """Check that the certificate is already valid by the API server's clock, not by the pod's."""
    if talos.not_before is not None and talos.not_before - _TOLERATED > now:
        yield report_wrong(
            (
                f"the Talos certificate is valid only from {talos.not_before:%FT%TZ} on: the clock of the "
                "control plane that issued it is ahead"
            ),
            "correct its clock (machine.time.servers):",
            "talosctl --nodes CONTROL_PLANES time",
        )


def _compute_offset(moment: RemoteClock) -> tuple[timedelta, timedelta]:
    """Return how far the remote clock is ahead of the local one: minimum and maximum."""
    return moment.earliest - moment.responded_at, moment.latest - moment.requested_at


def _excess_offset(offset: tuple[timedelta, timedelta]) -> timedelta | None:
    """Return the minimal offset if it exceeds the tolerance, else None; positive: the remote is ahead."""
    low, high = offset
    if low > _TOLERATED:
        return low
    return high if high < -_TOLERATED else None


def _format_seconds(span: timedelta) -> str:
    seconds = abs(int(span.total_seconds()))
    return f"{seconds} s" if seconds < 600 else f"{seconds // 60} min"
