"""Every check, in the order of importance, and what is made of what was seen. Pure."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from cli.doctor.checks.config_file import config
from cli.doctor.checks.kubelets import kubelets, serving_certificates
from cli.doctor.checks.nats import nats
from cli.doctor.checks.others import approvers, controllers, pod_cidrs
from cli.doctor.checks.rights_held import rights
from cli.doctor.checks.services import pod_security, services, versions
from cli.doctor.checks.talos import access, clock, credential
from cli.doctor.findings import Check, Diagnosis, Finding
from cli.doctor.names import NAMES
from cli.doctor.seen import Seen


class Asks(msgspec.Struct, frozen=True):
    """A check: its name for --only, its question, its judgement."""

    name: str
    asks: str
    judge: Callable[[Seen], Iterator[Finding]]


CHECKS: Final = (
    Asks("services", "Do the services run?", services),
    Asks("config", "Is the --cloud-config file right?", config),
    Asks("rights", "Has each service its rights, and no more?", rights),
    Asks("talos-credential", "Does Talos write the credential?", credential),
    Asks("talos", "Do machines answer to it?", access),
    Asks("nats", "Is NATS there, and all services on it?", nats),
    Asks("kubelets", "Do kubelets wait for a cloud controller?", kubelets),
    Asks("serving-certificates", "Do kubelets ask for serving certificates?", serving_certificates),
    Asks("controllers", "Is it the only cloud controller manager?", controllers),
    Asks("pod-cidrs", "Does one alone give pod CIDRs?", pod_cidrs),
    Asks("approvers", "Is csr the only one who approves?", approvers),
    Asks("clock", "Do the clocks agree?", clock),
    Asks("versions", "Is everything of one version?", versions),
    Asks("pod-security", "Does the namespace take the pods?", pod_security),
)


def diagnose(seen: Seen, only: Iterable[str] = ()) -> Diagnosis:
    """`only` these checks, or all."""
    wanted = frozenset(only) or frozenset(NAMES)
    return Diagnosis(
        checks=tuple(
            Check(name=one.name, asks=one.asks, findings=tuple(one.judge(seen)))
            for one in CHECKS
            if one.name in wanted
        )
    )
