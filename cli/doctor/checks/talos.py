"""Whether the Talos credential exists, suffices and works, and whether the clocks agree. Pure."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from cli.cluster.unavailable import CLOCK_TOLERANCE, Unavailable, excess_offset
from cli.doctor.findings import Check, Finding
from cli.doctor.snapshot import CredentialProbe, InstallationSnapshot
from cli.inside.talos_credential import ProbeResult, TalosCredentialReport
from cli.lines import format_age

READER: Final = "os:reader"
_MORE_THAN_READER: Final = ("os:admin", "os:operator", "os:etcd:backup")
_ACCESS: Final = "machine.features.kubernetesTalosAPIAccess"
_PATCH: Final = (
    "talosctl --nodes CONTROL_PLANES patch machineconfig --patch @deploy/talos/controlplane-patch.yaml"
)


def check_credential(seen: InstallationSnapshot) -> Check:
    """Check that Talos writes the credential that metadata mounts."""
    name, namespace = seen.installation.talos_account, seen.installation.namespace
    if not name:
        return "machines are not queried (talos.enabled=false), so no credential is needed"
    where = f"ServiceAccount.talos.dev {namespace}/{name}"
    match seen.talos_objects.account:
        case Unavailable() as unavailable:
            yield Finding.unavailable(f"{where} was not read", unavailable)
        case None if not seen.talos_objects.has_kind:
            yield Finding.wrong(
                f"the cluster has no kind ServiceAccount of talos.dev: no control plane has {_ACCESS}",
                "patch the control planes (from Talos 1.14 on, with KubeletConfig: "
                "controlplane-patch-1.14.yaml), then apply the chart again:",
                _PATCH,
                seen.installation.reapply_command,
            )
        case None:
            yield Finding.wrong(
                f"{where} does not exist", "create it again:", seen.installation.reapply_command
            )
        case account:
            yield from _check_service_account(seen, where, account.status.failure_reason, account.spec.roles)
    if seen.talos_objects.has_service is False:
        yield Finding.wrong(
            "Service default/talos does not exist; pods reach the Talos API through it",
            f"control planes create it if {_ACCESS} is enabled:",
            _PATCH,
        )
    return f"{where} has the role {READER}, and Talos reports no failure"


def _check_service_account(
    seen: InstallationSnapshot, where: str, failure: str, roles: tuple[str, ...]
) -> Iterator[Finding]:
    namespace = seen.installation.namespace
    if failure:
        yield Finding.wrong(
            f"Talos rejects {where}: {failure}",
            f"in the machine config of the control planes, add {namespace} to "
            f"{_ACCESS}.allowedKubernetesNamespaces, and {', '.join(roles) or READER} to allowedRoles:",
            _PATCH,
        )
        return
    more = [role for role in roles if role in _MORE_THAN_READER]
    if more:
        yield Finding.wrong(
            f"{where} has {', '.join(more)}: {READER} suffices, and with more an attacker who controls "
            "metadata can change machines",
            "apply it again as in the chart:",
            seen.installation.reapply_command,
        )
    elif READER not in roles:
        yield Finding.wrong(
            f"{where} has {', '.join(roles) or 'no role'}, but machines require {READER}",
            "apply it again as in the chart:",
            seen.installation.reapply_command,
        )


def check_access(seen: InstallationSnapshot) -> Check:
    """Check the answers of the Talos API to metadata's pod."""
    if not seen.installation.talos_account:
        return "machines are not queried (talos.enabled=false)"
    if isinstance(seen.talos, Unavailable):
        yield Finding.unavailable("metadata's pod was not queried", seen.talos)
        return ""
    yield from _check_report(seen, seen.talos.report)
    return _describe_access(seen.talos.report)


def _check_report(seen: InstallationSnapshot, talos: TalosCredentialReport) -> Iterator[Finding]:
    kubectl, name = seen.installation.kubectl, seen.installation.talos_account
    if talos.problem:
        yield Finding.wrong(
            f"metadata's pod has no usable credential: {talos.problem}",
            "Talos renews it if its ServiceAccount is valid and the clocks agree:",
            f"{kubectl} get serviceaccounts.talos.dev {name} --output yaml",
        )
        return
    if not set(talos.roles) & {READER, *_MORE_THAN_READER}:
        yield Finding.wrong(
            f"the credential has the roles {', '.join(talos.roles) or '(none)'}, but needs {READER}",
            f"add {READER} to allowedRoles of {_ACCESS}:",
            _PATCH,
        )
    silent = [one for one in talos.endpoints if one.fault]
    if silent:
        all_of_them = len(silent) == len(talos.endpoints)
        yield Finding.wrong(
            f"{'no endpoint' if all_of_them else 'not every endpoint'} answers: {_describe_faults(silent)}",
            "endpoints must be control planes that the pod reaches on port 50000; set others with "
            "--talos-endpoints (values: services.metadata.extraArgs). To see the endpoints of the Service:",
            "kubectl --namespace default get endpointslices --selector kubernetes.io/service-name=talos",
        )
        if all_of_them:
            return
    failing = [one for one in talos.machines if one.fault]
    if failing:
        yield Finding.wrong(
            f"machines that do not answer: {_describe_faults(failing)}",
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


def check_clocks(seen: InstallationSnapshot) -> Check:
    """Check that the clocks of API server, pod and this computer agree, and the certificate with them."""
    if isinstance(seen.clock, Unavailable):
        yield Finding.unavailable("the API server's time is unknown", seen.clock)
        return ""
    apart = seen.clock.offset
    if apart:
        yield Finding.wrong(
            f"this computer's clock is {format_age(abs(apart.total_seconds()))} "
            f"{'behind' if apart > timedelta() else 'ahead of'} the API server's",
            "correct one of them: otherwise certificates appear not yet valid, or expired:",
            "timedatectl status",
        )
    if isinstance(seen.talos, CredentialProbe):
        (low, high), (first, last) = seen.talos.clock.bounds, seen.clock.bounds
        between = excess_offset((low - last, high - first))
        if between:
            ahead = "ahead of" if between > timedelta() else "behind"
            span = format_age(abs(between.total_seconds()))
            yield Finding.wrong(
                f"the clock of metadata's node is {span} {ahead} the API server's",
                "synchronize the clocks of the machines (machine.time.servers):",
                "talosctl --nodes CONTROL_PLANES time",
            )
        yield from _check_certificate(seen.talos.report, seen.at)
    is_probed = isinstance(seen.talos, CredentialProbe)
    who = "API server, metadata's node and this computer" if is_probed else "API server and this computer"
    return f"{who} agree within {CLOCK_TOLERANCE.seconds} s"


def _check_certificate(talos: TalosCredentialReport, now: datetime) -> Iterator[Finding]:
    """Check that the certificate is already valid by the API server's clock, not by the pod's."""
    if talos.not_before is not None and talos.not_before - CLOCK_TOLERANCE > now:
        yield Finding.wrong(
            f"the Talos certificate is valid only from {talos.not_before:%FT%TZ} on: the clock of the "
            "control plane that issued it is ahead",
            "correct its clock (machine.time.servers):",
            "talosctl --nodes CONTROL_PLANES time",
        )
