"""Whose Service it is, what its load balancer waits for, and which Nodes are its targets. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final, Literal

import msgspec

from cli.cluster.cloud_accounts import AccountProcess
from cli.cluster.kube_events import KubeEvent
from cli.cluster.lease_state import LeaseState
from cli.cluster.unavailable import NOT_QUERIED, Unavailable, list_known
from cli.explain.layout import Finding
from libs.clouds.balancers import InvalidField
from libs.clouds.hcloud.balancers import annotations as hcloud
from libs.clouds.hcloud.hcloud_instances import DEDICATED_PREFIXES
from libs.clouds.openstack.balancers import annotations as openstack
from libs.clouds.thalassa.balancers import annotations as thalassa
from libs.common.cloud_config.model import NodeSelectorTerm
from libs.common.contract.instances import CLOUD_PROVIDERS, get_provider
from libs.common.contract.kube_service import ABANDON_ANNOTATION, LOAD_BALANCER, KubeService
from libs.common.contract.node import Node
from services.cloud.core.balancers.balancer_answers import ABANDON_UNKNOWN
from services.cloud.core.balancers.balancer_record import (
    BalancerRecord,
    is_selected,
    read_balancer_record,
)
from services.cloud.core.balancers.balancer_status import find_condition, read_ingress
from services.cloud.core.balancers.select_targets import TargetRules, TargetSelection, select_targets

# "moving": it waits for nothing but the process. "another's": no account of ours has it.
ServiceState = Literal["well", "moving", "another's", "stuck", "unknown"]
# By the reason of the condition TalosLoadBalancerBlocked; {account} is that of the Service.
_CONDITION_FIXES: Final[Mapping[str, str]] = {
    "InvalidField": "Correct the fields that the cause names, or remove them.",
    "CredentialRejected": "Put a token that may read and write into the Secret of account {account}, or give "
    "its user the missing role. No restart is needed.",
    "CloudRejected": "Correct what the cloud rejects, such as a quota, a type or a location. The write is "
    "repeated every few minutes. If the load balancer has failed: let the cloud repair it, or delete it at "
    "the cloud, and the account creates another one.",
    "ProjectNotProven": "Put a token of the project that has the load balancer into the Secret of account "
    "{account}.",
    "OtherController": "Decide which controller has the Service, and stop the other one. Then remove what it "
    "has left: addresses in the status, or its tags at the load balancer. docs/clouds.md describes how to "
    "take a load balancer over.",
}
_CLASS_IS_FIXED: Final = (
    "The field is immutable: set the type to ClusterIP first, or create the Service again."
)


class ServiceEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The Service as the API server has it now; other parts may be unavailable."""

    service: KubeService
    at: datetime
    accounts: tuple[AccountProcess, ...] | Unavailable
    events: tuple[KubeEvent, ...] | Unavailable = NOT_QUERIED  # newest first
    nodes: tuple[Node, ...] | Unavailable = NOT_QUERIED
    lease: LeaseState | Unavailable = NOT_QUERIED  # of the account's process


class ServiceExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """What the command shows; `findings` has the most important one first."""

    evidence: ServiceEvidence
    state: ServiceState
    findings: tuple[Finding, ...]
    process: AccountProcess | None  # of the account that has the Service
    record: BalancerRecord | None
    invalid: tuple[InvalidField, ...] = ()  # annotations
    selection: TargetSelection | None = None  # None: Nodes or rules are unknown

    @property
    def exit_status(self) -> int:
        """Return 1 if there is a problem, 2 if it is unknown who has the Service."""
        return {"stuck": 1, "unknown": 2}.get(self.state, 0)

    @property
    def abandon_command(self) -> str:
        """Return the command that gives up what the record names; "" while nothing is to end."""
        service, record = self.evidence.service, self.record
        stays = self.process is not None and _is_selected(self.evidence, self.process)
        is_ending = bool(service.metadata.deletion_timestamp) or not stays
        if record is None or not is_ending or not self.findings:
            return ""
        annotation = f"{ABANDON_ANNOTATION}={record.id or ABANDON_UNKNOWN}"
        return (
            f"kubectl --namespace {service.metadata.namespace} annotate service {service.name} {annotation}"
        )


def find_account(evidence: ServiceEvidence) -> AccountProcess | None:
    """Return the account that has, or gets, the Service's load balancer: the recorded one comes first."""
    accounts = list_known(evidence.accounts)
    record = read_balancer_record(evidence.service, evidence.at)
    if record is not None:
        return next((each for each in accounts if each.account.name == record.account), None)
    return next((each for each in accounts if _is_selected(evidence, each)), None)


def explain_service(evidence: ServiceEvidence) -> ServiceExplanation:
    """Return the explanation; all decisions that the process has made are in the Service."""
    record = read_balancer_record(evidence.service, evidence.at)
    process = find_account(evidence)
    parsed = _parse_annotations(evidence, process)
    findings = tuple(_find_problems(evidence, record, process, parsed))
    is_ended = evidence.service.metadata.deletion_timestamp is not None
    state: ServiceState = "moving" if is_ended or not read_ingress(evidence.service) else "well"
    if findings:
        state = "stuck"
    elif process is None:
        state = "unknown" if isinstance(evidence.accounts, Unavailable) else "another's"
    return ServiceExplanation(
        evidence=evidence,
        state=state,
        findings=findings,
        process=process,
        record=record,
        invalid=parsed.invalid if parsed else (),
        selection=_select_targets(evidence, process, parsed),
    )


def _is_selected(evidence: ServiceEvidence, process: AccountProcess) -> bool:
    return process.is_switched_on and is_selected(evidence.service, process.account)


class _ReadAnnotations(msgspec.Struct, frozen=True):
    """What the annotations say, apart from the defaults of the process."""

    invalid: tuple[InvalidField, ...]
    node_selector: tuple[NodeSelectorTerm, ...]


def _parse_annotations(evidence: ServiceEvidence, process: AccountProcess | None) -> _ReadAnnotations | None:
    """Return the annotations as the process reads them, None without a reader."""
    annotations = evidence.service.metadata.annotations
    if process is None or process.provider not in CLOUD_PROVIDERS:
        return None
    if process.provider == "openstack":
        name = annotations.get(openstack.CLASS, "")
        sections: dict[str, dict[str, str]] = {name: {}}  # in a file that only the process has
        of_openstack = openstack.parse_annotations(annotations, sections)
        return _ReadAnnotations(of_openstack.invalid, of_openstack.values.node_selector)
    if process.provider == "thalassa":
        return _ReadAnnotations(thalassa.parse_annotations(annotations).invalid, ())
    of_hcloud = hcloud.parse_annotations(annotations, hcloud.Annotations())
    return _ReadAnnotations(of_hcloud.invalid, of_hcloud.values.node_selector)


def _find_problems(
    evidence: ServiceEvidence,
    record: BalancerRecord | None,
    process: AccountProcess | None,
    parsed: _ReadAnnotations | None,
) -> Iterator[Finding]:
    service = evidence.service
    if record is not None and process is None:
        if not isinstance(evidence.accounts, Unavailable):
            yield Finding(
                what="kept by an account that does not exist here",
                cause=f"account {record.account} has its load balancer, and no process has this account",
                fix=f"Configure account {record.account} again, with a token of the same project. If that "
                "token never returns, configure it with one of any project, and give the load balancer up.",
            )
        return
    if process is None:
        yield from _explain_not_ours(evidence)
        return
    yield from _find_process_problems(evidence, process)
    condition = find_condition(service)
    if condition is not None:
        fix = _CONDITION_FIXES.get(condition.reason, "The message names it.")
        yield Finding(what="blocked", cause=condition.message, fix=fix.format(account=process.account.name))
    elif parsed is not None and parsed.invalid:
        yield Finding(
            what="not as its annotations ask for",
            cause="; ".join(map(str, parsed.invalid)),
            fix=_CONDITION_FIXES["InvalidField"],
        )
    if service.spec.type == LOAD_BALANCER and record is not None and not _is_selected(evidence, process):
        yield Finding(
            what="no longer of its account",
            cause=f"account {process.account.name} has its load balancer, and must delete it first",
            fix="Wait until the record is gone. Another account or controller begins after that.",
        )
    latest = next(iter(list_known(evidence.events)), None)
    if condition is None and latest is not None and latest.reason.endswith("Failed"):
        yield Finding(
            what="waiting for the cloud", cause=latest.message, fix="The process repeats it by itself."
        )


def _explain_not_ours(evidence: ServiceEvidence) -> Iterator[Finding]:
    """A Service of another controller is no problem, unless it keeps a finalizer that nobody removes."""
    service, accounts = evidence.service, list_known(evidence.accounts)
    if isinstance(evidence.accounts, Unavailable):
        return
    if service.metadata.deletion_timestamp and service.has_finalizer:
        yield Finding(
            what="kept by a finalizer of load balancers",
            cause="it has no record of an account, so another controller or a removed account has set it",
            fix="Start the controller that has set it. If there is none, look for the load balancer in the "
            "cloud's console, delete it there, and remove the finalizer by hand.",
        )
    if service.spec.type != LOAD_BALANCER:
        return
    own = service.spec.load_balancer_class
    off = next((each for each in accounts if is_selected(service, each.account)), None)
    if off is not None:
        yield Finding(
            what="without a controller",
            cause=f"account {off.account.name} has this class, and {off.place} does not run "
            "service-lb-controller",
            fix="Add service-lb-controller to enabledControllers.",
        )
    elif own is None and not read_ingress(service):
        classes = sorted(
            each.account.load_balancer_class for each in accounts if each.account.load_balancer_class
        )
        yield Finding(
            what="without a load balancer",
            cause="it has no spec.loadBalancerClass, and no account is the default",
            fix=f"Set spec.loadBalancerClass to {' or '.join(classes)}. {_CLASS_IS_FIXED}"
            if classes
            else "Configure an account with loadBalancers (docs/clouds.md), or another controller.",
        )


def _find_process_problems(evidence: ServiceEvidence, process: AccountProcess) -> Iterator[Finding]:
    if not process.is_ready:
        yield Finding(
            what="waiting for its process",
            cause=f"{process.place} has no ready pod",
            fix="Read its log; /readyz names the reason. talos-ccm doctor names more.",
        )
    elif process.is_dry_run:
        yield Finding(
            what="in a dry run",
            cause=f"{process.place} only logs what would change",
            fix="Remove --load-balancer-dry-run and --observe-only from its flags.",
        )
    elif not isinstance(evidence.lease, Unavailable) and (why := evidence.lease.why_not_held(evidence.at)):
        yield Finding(
            what="waiting for its process",
            cause=f"no process leads: {why}",
            fix="After a crash, the next process leads within 90 s. If it does not, read the log of "
            f"{process.place}.",
        )


def _select_targets(
    evidence: ServiceEvidence, process: AccountProcess | None, parsed: _ReadAnnotations | None
) -> TargetSelection | None:
    if process is None or parsed is None or isinstance(evidence.nodes, Unavailable):
        return None
    provider = process.provider
    is_readable = "node-selector" not in {each.field.rpartition("/")[2] for each in parsed.invalid}
    return select_targets(
        evidence.nodes,
        deleted=(),
        is_complete=True,
        selector=parsed.node_selector if is_readable else None,
        rules=TargetRules(
            parse_provider_id=lambda text: text if _is_instance(text, provider) else None,
            needs_ipv4=provider != "thalassa",
            uses_addresses=provider == "openstack",
            address_prefixes=DEDICATED_PREFIXES if process.has_dedicated_targets else (),
        ),
    )


def _is_instance(provider_id: str, provider: str) -> bool:
    return get_provider(provider_id) == provider and not provider_id.startswith(DEDICATED_PREFIXES)


def group_left_out(selection: TargetSelection) -> dict[str, list[str]]:
    """Return the names of the Nodes that are no targets, by the reason in words."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in selection.left_out:
        found[LEFT_OUT_TEXTS[each.reason]].append(each.node)
    return found


LEFT_OUT_TEXTS: Final[Mapping[str, str]] = {
    "deleting": "is being deleted",
    "autoscaler": "the cluster autoscaler drains it",
    "excluded": "has the label node.kubernetes.io/exclude-from-external-load-balancers",
    "foreign_cloud": "no server of this cloud, by its providerID",
    "no_provider_id": "has no providerID yet",
    "no_address": "has no IPv4 address that the load balancer reaches",
    "not_selected": "not selected by the annotation node-selector",
}
