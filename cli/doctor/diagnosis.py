"""The table of checks in the order of importance, and their evaluation. Pure."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from cli.doctor.check_names import CHECK_NAMES
from cli.doctor.check_report import CheckFinding, CheckReport, Diagnosis
from cli.doctor.checks.competing_controllers import (
    check_approvers,
    check_cloud_controllers,
    check_pod_cidr_allocators,
)
from cli.doctor.checks.config_file import check_config_file
from cli.doctor.checks.kubelets import check_kubelets, check_serving_certificates
from cli.doctor.checks.nats import check_nats
from cli.doctor.checks.permissions import check_permissions
from cli.doctor.checks.services import check_pod_security, check_services, check_versions
from cli.doctor.checks.talos import check_access, check_clocks, check_credential
from cli.doctor.installation_snapshot import InstallationSnapshot


class CheckDefinition(msgspec.Struct, frozen=True):
    """A check: its name for --only, its question, and the function that evaluates it."""

    name: str
    question: str
    run: Callable[[InstallationSnapshot], Iterator[CheckFinding]]


CHECKS: Final = (
    CheckDefinition("services", "Do the services run?", check_services),
    CheckDefinition("config", "Is the --cloud-config file valid?", check_config_file),
    CheckDefinition("rights", "Has each service exactly its permissions?", check_permissions),
    CheckDefinition("talos-credential", "Does Talos provide the credential?", check_credential),
    CheckDefinition("talos", "Do machines accept the credential?", check_access),
    CheckDefinition("nats", "Does NATS run, with all services connected?", check_nats),
    CheckDefinition("kubelets", "Do kubelets use an external cloud provider?", check_kubelets),
    CheckDefinition(
        "serving-certificates", "Do kubelets request serving certificates?", check_serving_certificates
    ),
    CheckDefinition("controllers", "Is it the only cloud controller manager?", check_cloud_controllers),
    CheckDefinition(
        "pod-cidrs", "Does exactly one controller allocate pod CIDRs?", check_pod_cidr_allocators
    ),
    CheckDefinition("approvers", "Is csr the only approver?", check_approvers),
    CheckDefinition("clock", "Do the clocks agree?", check_clocks),
    CheckDefinition("versions", "Do all parts have the same version?", check_versions),
    CheckDefinition("pod-security", "Does the namespace admit the pods?", check_pod_security),
)


def diagnose(seen: InstallationSnapshot, only: Iterable[str] = ()) -> Diagnosis:
    """Run the checks named in `only`, or all of them."""
    wanted = frozenset(only) or frozenset(CHECK_NAMES)
    return Diagnosis(
        checks=tuple(
            CheckReport(name=one.name, question=one.question, findings=tuple(one.run(seen)))
            for one in CHECKS
            if one.name in wanted
        )
    )
