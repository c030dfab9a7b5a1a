"""A healthy installation as the doctor has seen it; a test changes what it is about."""

from datetime import timedelta
from typing import Any

import msgspec

from cli.doctor.findings import Check
from cli.doctor.installation import Installation, Process
from cli.doctor.judging import diagnose
from cli.doctor.objects import (
    Condition,
    Container,
    LeaseItem,
    Meta,
    Named,
    Pod,
    PodSpec,
    PodStatus,
    PodTemplate,
    SecretVolume,
    TalosAccount,
    TalosAccountSpec,
    Volume,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
)
from cli.doctor.rights import Reviewed, questions
from cli.doctor.seen import Moment, Seen
from cli.doctor.talos_seen import Asked, TalosSeen
from cli.inside.seen import FlowSeen, QueueSeen, ServiceSeen, StreamSeen, Word
from libs.common.events import Leading
from libs.common.kube_api.lease import LeaseSpec
from libs.common.service_spec import DURABLES, SERVICES, WATCHER_LEASE_NAME
from libs.testbed.pki import Authority
from tests.builders import INCARNATION, NOW, a_node

PREFIX = "talos-cloud-controller-manager"
IMAGE = f"ghcr.io/talos-ccm/{PREFIX}:v0.1.0"
RUNNING = ("watcher", "metadata", "labeler", "csr", "ipam")
AUTHORITY = Authority.make(common_name="nats").pem.decode()
SECOND = timedelta(seconds=1)


def labels(component: str) -> dict[str, str]:
    named = {"app.kubernetes.io/instance": PREFIX, "app.kubernetes.io/version": "v0.1.0"}
    return named | ({"app.kubernetes.io/component": component} if component else {})


def a_workload(
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
    volumes = [Volume(name="cloud-config", config_map=Named(name=PREFIX))]
    if component == "metadata":
        secret = SecretVolume(secret_name=f"{PREFIX}-talos-secrets")
        volumes.append(Volume(name="talos-secrets", secret=secret))
    pod = PodSpec(
        service_account_name=f"{PREFIX}-{component}",
        containers=(container,),
        volumes=tuple(volumes),
        host_network=host_network,
    )
    meta = Meta(name=f"{PREFIX}-{component}", namespace="kube-system", labels=labels(component))
    meta.labels["app.kubernetes.io/version"] = version
    status = WorkloadStatus(ready_replicas=ready, conditions=conditions)
    template = PodTemplate(spec=pod)
    return Workload(metadata=meta, spec=WorkloadSpec(template=template), status=status, kind=kind)


def a_process(service: str, **workload: Any) -> Process:
    made = a_workload(service, **workload)
    wirings = tuple(wiring for wiring in SERVICES if wiring.service == service)
    return Process(workload=made, container=made.pod.containers[0], services=wirings)


def an_installation(*, without: tuple[str, ...] = (), **workloads: dict[str, Any]) -> Installation:
    """`labeler={"ready": 0}` says what is different about one workload."""
    return Installation(
        namespace="kube-system",
        release=PREFIX,
        processes=tuple(a_process(s, **workloads.get(s, {})) for s in RUNNING if s not in without),
        nats=a_workload("nats", command=("nats-server",)),
    )


def a_pod(component: str, *, ready: bool = True, **status: Any) -> Pod:
    conditions = (Condition(type="Ready", status="True" if ready else "False"),)
    status = {"phase": "Running", "conditions": conditions, **status}
    meta = Meta(name=f"{PREFIX}-{component}-0", namespace="kube-system", labels=labels(component))
    return Pod(metadata=meta, status=PodStatus(**status))


def a_manager(*flags: str) -> Pod:
    container = Container(name="kcm", command=("/usr/local/bin/kube-controller-manager", *flags))
    return Pod(metadata=Meta(name="kube-controller-manager-cp-1"), spec=PodSpec(containers=(container,)))


def a_lease(holder: str, name: str = WATCHER_LEASE_NAME, *, age: timedelta = SECOND) -> LeaseItem:
    renewed = (NOW - age).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = LeaseSpec(holder_identity=holder, lease_duration_seconds=15, renew_time=renewed)
    return LeaseItem(metadata=Meta(name=name, namespace="kube-system"), spec=spec)


def a_moment(ahead: timedelta = timedelta()) -> Moment:
    said = NOW + ahead
    return Moment(said_from=said, said_until=said + SECOND, asked=NOW, answered=NOW + SECOND)


def a_talos(**changed: Any) -> TalosSeen:
    well = {
        "at": NOW,
        "source": "/var/run/secrets/talos.dev/config",
        "roles": ("os:reader",),
        "not_before": NOW - 60 * SECOND,
        "not_after": NOW + timedelta(hours=6),
        "endpoints": (Asked(address="talos.default:50000"),),
        "machines": (Asked(address="10.0.0.5", name="web-1"),),
    }
    return TalosSeen(**{**well, **changed})


def a_flow(**changed: Any) -> FlowSeen:
    leading = Leading(stream_id=INCARNATION, epoch=1, holder="watcher-0")
    well = {
        "at": NOW,
        "stream": StreamSeen(incarnation=INCARNATION, messages=7, bytes=10, max_bytes=1000),
        "queues": tuple(QueueSeen(name=d.name, service=d.service, waiting=1) for d in DURABLES),
        "leading": Word(subject="leading", published_at=NOW - SECOND, event=leading),
        "services": tuple(ServiceSeen(service=s, here=None if s == "metadata" else True) for s in RUNNING),
    }
    return FlowSeen(**{**well, **changed})


def seen(*, here: Installation | None = None, **changed: Any) -> Seen:
    """All is well but for what is changed."""
    here = here or an_installation()
    reviews = tuple(Reviewed(asked, allowed=asked.wanted) for asked in questions(here))
    well: dict[str, Any] = {
        "at": NOW,
        "version": "0.1.0",
        "installation": here,
        "workloads": here.workloads,
        "pods": tuple(a_pod(component) for component in (*RUNNING, "nats")),
        "system_pods": (a_manager("--allocate-node-cidrs=true", "--controllers=*,-node-ipam-controller"),),
        "nodes": (a_node("web-1"),),
        "requests": (),
        "serving": {"web-1": True},
        "config": "global: {}\n",
        "reviews": reviews,
        "talos_account": TalosAccount(
            metadata=Meta(name=f"{PREFIX}-talos-secrets"), spec=TalosAccountSpec(roles=("os:reader",))
        ),
        "talos_service": True,
        "talos": a_talos(),
        "server_clock": a_moment(),
        "pod_clock": a_moment(),
        "flow": a_flow(),
        "authority": AUTHORITY,
        "leases": (a_lease(f"{PREFIX}-watcher-0_b0c1"),),
        "namespace_labels": {},
    }
    return Seen(**{**well, **changed})


def judged(name: str, what: Seen) -> Check:
    """What one check says."""
    (check,) = diagnose(what, [name]).checks
    return check


def said(name: str, what: Seen, state: str = "wrong") -> str:
    """All that it says, which must be in that state."""
    check = judged(name, what)
    assert check.state == state, check
    for finding in check.findings:
        assert finding.state == "ok" or finding.fix, "whoever finds something wrong says what to do"
    return "\n".join(line for f in check.findings for line in (f.seen, f.fix, *f.commands))


def replaced(what: Seen, **changed: Any) -> Seen:
    return msgspec.structs.replace(what, **changed)
