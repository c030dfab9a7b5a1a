"""The table of checks in the order of importance, and their evaluation. Pure."""

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from cli.doctor.checks.clouds import check_clouds
from cli.doctor.checks.competing_controllers import (
    check_approvers,
    check_cloud_controllers,
    check_load_balancers,
    check_pod_cidr_allocators,
)
from cli.doctor.checks.competing_routes import check_routes
from cli.doctor.checks.config_file import check_config_file
from cli.doctor.checks.kubelets import check_kubelets, check_serving_certificates
from cli.doctor.checks.nats import check_nats
from cli.doctor.checks.permissions import check_permissions
from cli.doctor.checks.services import check_pod_security, check_services, check_versions
from cli.doctor.checks.talos import check_access, check_clocks, check_credential
from cli.doctor.findings import Check, CheckReport, Diagnosis, Finding, find_worst_state
from cli.doctor.snapshot import InstallationSnapshot


class CheckDefinition(msgspec.Struct, frozen=True):
    """A check: its name for --only, its question, the parts of the snapshot that it reads, its function."""

    name: str
    question: str
    parts: tuple[str, ...]
    run: Callable[[InstallationSnapshot], Check]


_OWNED_NODES: Final = ("nodes", "config")  # the file says which Nodes belong to this installation

CHECKS: Final = (
    CheckDefinition("services", "Do the services run?", ("pods", "unready"), check_services),
    CheckDefinition("config", "Is the --cloud-config file valid?", ("config",), check_config_file),
    CheckDefinition("rights", "Has each service exactly its permissions?", ("reviews",), check_permissions),
    CheckDefinition(
        "talos-credential", "Does Talos provide the credential?", ("talos_objects",), check_credential
    ),
    CheckDefinition("talos", "Do machines accept the credential?", ("nodes", "pods", "talos"), check_access),
    CheckDefinition(
        "nats", "Does NATS run, with all services connected?", ("pods", "flow", "authority"), check_nats
    ),
    CheckDefinition("kubelets", "Do kubelets use an external cloud provider?", _OWNED_NODES, check_kubelets),
    CheckDefinition(
        "serving-certificates",
        "Do kubelets request serving certificates?",
        (*_OWNED_NODES, "requests", "serving"),
        check_serving_certificates,
    ),
    CheckDefinition(
        "controllers",
        "Is it the only cloud controller manager?",
        ("pods", "lease", "upstream_leases", "config"),
        check_cloud_controllers,
    ),
    CheckDefinition(
        "pod-cidrs",
        "Does exactly one controller allocate pod CIDRs?",
        ("system_pods",),
        check_pod_cidr_allocators,
    ),
    CheckDefinition("approvers", "Is csr the only approver?", (*_OWNED_NODES, "requests"), check_approvers),
    CheckDefinition("clock", "Do the clocks agree?", ("nodes", "pods", "talos", "clock"), check_clocks),
    CheckDefinition("versions", "Do all parts have the same version?", (), check_versions),
    CheckDefinition(
        "pod-security", "Does the namespace admit the pods?", ("namespace_labels",), check_pod_security
    ),
    CheckDefinition(
        "load-balancers", "Does one controller have each Service?", ("services",), check_load_balancers
    ),
    CheckDefinition("routes", "Does one controller have the routes of a network?", ("nodes",), check_routes),
    CheckDefinition("clouds", "Have cloud accounts seen their Nodes' instances?", ("nodes",), check_clouds),
)


def list_parts(only: Collection[str] = ()) -> frozenset[str]:
    """Return the parts of the snapshot that these checks read, or all checks."""
    return frozenset(part for check in CHECKS if not only or check.name in only for part in check.parts)


def diagnose(seen: InstallationSnapshot, only: Collection[str] = ()) -> Diagnosis:
    """Run the checks named in `only`, or all of them."""
    here = seen.installation
    return Diagnosis(
        namespace=here.namespace,
        release=here.release,
        services=here.services,
        checks=tuple(_run(check, seen) for check in CHECKS if not only or check.name in only),
    )


def _run(check: CheckDefinition, seen: InstallationSnapshot) -> CheckReport:
    result = ""

    def collect() -> Iterator[Finding]:
        nonlocal result
        result = yield from check.run(seen)

    findings = tuple(collect()) or (Finding(state="ok", seen=result),)
    state = find_worst_state(finding.state for finding in findings)
    return CheckReport(name=check.name, state=state, asks=check.question, findings=findings)
