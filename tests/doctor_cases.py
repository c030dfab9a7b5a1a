"""A healthy installation as the doctor has seen it; a test changes what it is about."""

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from cli.cluster.installation import Installation, Process
from cli.cluster.kube_objects import (
    Condition,
    Container,
    Meta,
    NameReference,
    PodSpec,
    PodTemplate,
    SecretVolume,
    TalosAccount,
    TalosAccountSpec,
    TalosAccountStatus,
    Volume,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
)
from cli.cluster.lease_state import LeaseState
from cli.cluster.pods import Pod, PodStatus
from cli.cluster.snapshot import ConfigFile
from cli.cluster.unavailable import RemoteClock
from cli.doctor.diagnosis import diagnose
from cli.doctor.findings import CheckReport
from cli.doctor.required_permissions import list_access_reviews
from cli.doctor.snapshot import AccessReviews, CredentialProbe, InstallationSnapshot, TalosObjects
from cli.inside.flow_snapshot import (
    ConsumerSnapshot,
    FlowSnapshot,
    LastMessage,
    StreamSnapshot,
)
from cli.inside.talos_credential import ProbeResult, TalosCredentialReport
from libs.common.contract.events import Leading
from libs.common.contract.node import ObjectMeta
from libs.common.contract.services import DURABLES, NAMED_SERVICES
from libs.testbed.pki import CertificateAuthority
from tests.builders import NOW, STREAM_ID, make_node

PREFIX = "talos-cloud-controller-manager"
IMAGE = f"registry.example.com/{PREFIX}:v0.1.0"
RUNNING = ("watcher", "metadata", "labeler", "csr", "ipam")
AUTHORITY = CertificateAuthority.make(common_name="nats").pem.decode()
SECOND = timedelta(seconds=1)


def make_labels(component: str) -> dict[str, str]:
    named = {"app.kubernetes.io/instance": PREFIX, "app.kubernetes.io/version": "v0.1.0"}
    return named | ({"app.kubernetes.io/component": component} if component else {})


def make_workload(
    component: str,
    *,
    kind: str = "Deployment",
    ready: int = 1,
    image: str = IMAGE,
    version: str = "v0.1.0",
    conditions: tuple[Condition, ...] = (),
    host_network: bool = False,
    args: tuple[str, ...] = (),
    command: tuple[str, ...] | None = None,
) -> Workload:
    """One of the chart's."""
    words = command or ("python", "-m", f"services.{component}")
    container = Container(
        name=component, image=image, command=words, args=("--cloud-config=/etc/talos/ccm-config.yaml", *args)
    )
    volumes = [Volume(name="cloud-config", config_map=NameReference(name=PREFIX))]
    if component == "metadata":
        secret = SecretVolume(secret_name=f"{PREFIX}-talos-secrets")
        volumes.append(Volume(name="talos-secrets", secret=secret))
    pod = PodSpec(
        service_account_name=f"{PREFIX}-{component}",
        containers=(container,),
        volumes=tuple(volumes),
        host_network=host_network,
    )
    labels = make_labels(component) | {"app.kubernetes.io/version": version}
    meta = Meta(name=f"{PREFIX}-{component}", namespace="kube-system", labels=labels)
    status = WorkloadStatus(ready_replicas=ready, conditions=conditions)
    template = PodTemplate(spec=pod)
    return Workload(metadata=meta, spec=WorkloadSpec(template=template), status=status, kind=kind)


def make_process(service: str, **workload: Any) -> Process:
    made = make_workload(service, **workload)
    wirings = tuple(wiring for wiring in NAMED_SERVICES if wiring.service == service)
    return Process(workload=made, container=made.pod.containers[0], services=wirings)


def make_installation(*, without: tuple[str, ...] = (), **workloads: dict[str, Any]) -> Installation:
    """`labeler={"ready": 0}` says what is different about one workload."""
    return Installation(
        namespace="kube-system",
        release=PREFIX,
        processes=tuple(make_process(s, **workloads.get(s, {})) for s in RUNNING if s not in without),
        nats=make_workload("nats", command=("nats-server",)),
    )


def make_pod(component: str, *, ready: bool = True, **status: Any) -> Pod:
    conditions = (Condition(type="Ready", status="True" if ready else "False"),)
    status = {"phase": "Running", "conditions": conditions, **status}
    meta = ObjectMeta(name=f"{PREFIX}-{component}-0", labels=make_labels(component))
    return Pod(metadata=meta, status=PodStatus(**status))


def make_controller_manager(*flags: str) -> Pod:
    container = Container(name="kcm", command=("/usr/local/bin/kube-controller-manager", *flags))
    return Pod(
        metadata=ObjectMeta(name="kube-controller-manager-cp-1"), spec=PodSpec(containers=(container,))
    )


def make_lease(holder: str, name: str = "", *, age: timedelta = SECOND) -> LeaseState:
    return LeaseState(holder=holder, renewed_at=NOW - age, lease_name=name)


def make_remote_clock(ahead: timedelta = timedelta()) -> RemoteClock:
    said = NOW + ahead
    return RemoteClock(earliest=said, latest=said + SECOND, requested_at=NOW, responded_at=NOW + SECOND)


def make_probe(*, clock: RemoteClock | None = None, **changed: Any) -> CredentialProbe:
    well = {
        "at": NOW,
        "source": "/var/run/secrets/talos.dev/config",
        "roles": ("os:reader",),
        "not_before": NOW - 60 * SECOND,
        "not_after": NOW + timedelta(hours=6),
        "endpoints": (ProbeResult(address="talos.default:50000"),),
        "machines": (ProbeResult(address="10.0.0.5", name="web-1"),),
    }
    report = TalosCredentialReport(**{**well, **changed})
    return CredentialProbe(report=report, clock=clock or make_remote_clock())


def make_talos_objects(*roles: str, failure: str = "", **changed: Any) -> TalosObjects:
    """The ServiceAccount of talos.dev with these roles."""
    account = TalosAccount(
        metadata=ObjectMeta(name=f"{PREFIX}-talos-secrets"),
        spec=TalosAccountSpec(roles=roles),
        status=TalosAccountStatus(failure_reason=failure),
    )
    return TalosObjects(**{"account": account, "has_service": True, **changed})


def make_flow_snapshot(**changed: Any) -> FlowSnapshot:
    leading = Leading(stream_id=STREAM_ID, epoch=1, holder="watcher-0")
    well = {
        "at": NOW,
        "stream": StreamSnapshot(created=STREAM_ID, messages=7, bytes=10, max_bytes=1000),
        "queues": tuple(ConsumerSnapshot(name=d.name, service=d.service, waiting=1) for d in DURABLES),
        "leading": LastMessage(subject="leading", published_at=NOW - SECOND, event=leading),
    }
    return FlowSnapshot(**{**well, **changed})


def make_snapshot(*, here: Installation | None = None, **changed: Any) -> InstallationSnapshot:
    """All is well but for what is changed."""
    here = here or make_installation()
    reviews = tuple(replace(each, is_allowed=each.is_required) for each in list_access_reviews(here))
    if isinstance(changed.get("config"), str):
        changed["config"] = ConfigFile(text=changed["config"], source=f"{PREFIX}/ccm-config.yaml")
    well: dict[str, Any] = {
        "at": NOW,
        "version": "0.1.0",
        "installation": here,
        "workloads": here.workloads,
        "pods": tuple(make_pod(component) for component in (*RUNNING, "nats")),
        "system_pods": (
            make_controller_manager("--allocate-node-cidrs=true", "--controllers=*,-node-ipam-controller"),
        ),
        "nodes": (make_node("web-1"),),
        "requests": (),
        "serving": {"web-1": True},
        "config": ConfigFile(text="global: {}\n", source="f"),
        "reviews": AccessReviews(results=reviews),
        "talos_objects": make_talos_objects("os:reader"),
        "talos": make_probe(),
        "clock": make_remote_clock(),
        "flow": make_flow_snapshot(),
        "authority": AUTHORITY,
        "lease": make_lease(f"{PREFIX}-watcher-0_b0c1"),
        "upstream_leases": (),
        "namespace_labels": {},
    }
    return InstallationSnapshot(**{**well, **changed})


def run_check(name: str, what: InstallationSnapshot) -> CheckReport:
    """What one check says."""
    (check,) = diagnose(what, [name]).checks
    return check


def format_observations(name: str, what: InstallationSnapshot, state: str = "wrong") -> str:
    """All that it says, which must be in that state."""
    check = run_check(name, what)
    assert check.state == state, check
    for finding in check.findings:
        assert finding.state == "ok" or finding.fix, "a finding that is not ok needs a fix"
    return "\n".join(line for f in check.findings for line in (f.seen, f.fix or "", *f.commands))
