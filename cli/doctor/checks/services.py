"""Do the services run, all of one version, and does the namespace let them? Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from cli.doctor.findings import Finding, few, ok, unknown, wrong
from cli.doctor.objects import ContainerStatus, Pod, PodEvent, Workload
from cli.doctor.seen import NotSeen, Seen
from libs.common.cloud_config.findings import truncate_line

_VERSION: Final = "app.kubernetes.io/version"
_COMPONENT: Final = "app.kubernetes.io/component"
_RELEASED: Final = re.compile(r"v?\d+\.\d+\.\d+([-+].*)?")
_ENFORCE: Final = "pod-security.kubernetes.io/enforce"
_LONGEST: Final = 300  # characters of somebody else's message
_NEEDED: Final = ("watcher", "metadata")


def services(seen: Seen) -> Iterator[Finding]:
    """Is every pod ready, and if not, why?"""
    if seen.installation.assumed:
        yield not_looked_at(seen)
        return
    bad = [workload for workload in seen.installation.workloads if workload.ready < max(workload.wanted, 1)]
    for workload in bad:
        yield _unready(seen, workload)
    for service in _NEEDED:
        if not seen.installation.runs(service):
            yield wrong(
                f"there is no {service}, without which no other service hears anything",
                "make it anew:",
                seen.installation.apply_again,
            )
    if not bad:
        prefix = f"{seen.installation.prefix}-"
        names = [(w.name.removeprefix(prefix), w) for w in seen.installation.workloads]
        counts = [f"{name} {w.ready}/{w.wanted}" for name, w in names]
        yield ok(f"ready: {', '.join(counts)}")


def not_looked_at(seen: Seen) -> Finding:
    """Of an installation that is assumed nothing is known to be well."""
    installation = seen.installation
    return unknown(
        f"what is installed is not known: {installation.assumed}",
        "ask as somebody who may list deployments, daemonsets and statefulsets there:",
        f"{installation.kubectl} auth can-i list deployments.apps",
    )


def _unready(seen: Seen, workload: Workload) -> Finding:
    kubectl, kind = seen.installation.kubectl, workload.kind.lower()
    if not workload.wanted:
        if workload.kind == "DaemonSet":
            return wrong(
                f"{workload} fits no node: none has the labels of its nodeSelector",
                "say nodeSelector in the chart's values as your control planes are labelled, and upgrade; "
                "what they bear shows",
                "kubectl get nodes --show-labels",
            )
        return wrong(
            f"{workload} is scaled to 0",
            "scale it up:",
            f"{kubectl} scale {kind} {workload.name} --replicas=1",
        )
    head = f"{workload} has {workload.ready} of {workload.wanted} pods ready"
    for condition in workload.status.conditions:
        if condition.type == "ReplicaFailure" and condition.status == "True":
            return wrong(
                f"{head}: {_bounded(condition.message)}",
                "mend what refuses its pods; it says so itself:",
                f"{kubectl} describe {kind} {workload.name}",
            )
    if isinstance(seen.pods, NotSeen):
        return wrong(
            f"{head}; why, its pods would tell, but {seen.pods.why}", seen.pods.fix, *seen.pods.commands
        )
    pods = [pod for pod in pods_of(workload, seen.pods) if not pod.ready]
    if not pods:
        return wrong(
            f"{head}, and nobody has made the others",
            "see what stands in the way:",
            f"{kubectl} describe {kind} {workload.name}",
        )
    pod = pods[0]
    why, fix, *commands = _why(pod, seen.events, seen.last_lines)
    return wrong(f"{head}: pod {pod.name} {why}", fix, *(c.format(kubectl=kubectl) for c in commands))


def pods_of(workload: Workload, pods: Sequence[Pod]) -> list[Pod]:
    """Those that it has made: of the same release and component."""
    labels = workload.metadata.labels
    same = ("app.kubernetes.io/instance", _COMPONENT)
    return [
        pod
        for pod in pods
        if all(pod.metadata.labels.get(key, "") == labels.get(key, "") for key in same)
        and pod.name.startswith(f"{workload.name}-")
    ]


def _why(pod: Pod, events: Sequence[PodEvent], lines: Mapping[str, str]) -> tuple[str, ...]:
    """What is the matter with a pod; what to do; commands."""
    describe = f"{{kubectl}} describe pod {pod.name}"
    status = pod.status
    for container in (*status.init_container_statuses, *status.container_statuses):
        if told := _why_container(pod, container, lines):
            return told
    for condition in status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return (
                f"fits on no node: {_bounded(condition.message)}",
                "set nodeSelector and tolerations in the chart's values as your control planes are:",
                "kubectl get nodes --output custom-columns=NAME:.metadata.name,TAINTS:.spec.taints[*].key",
            )
    failed = [e for e in events if e.involved_object.name == pod.name and e.type == "Warning"]
    if failed:
        last = failed[-1]
        return (f"is {_phase(pod)}: {last.reason}: {_bounded(last.message)}", *_of_event(last), describe)
    waiting = [c.name for c in status.container_statuses if not c.ready]
    if waiting and status.phase == "Running":
        said = _last(pod, lines)
        return (
            f"runs, and its container {waiting[0]} is not ready{said}",
            "its log says more, and so does /readyz?verbose on its port (docs/install.md):",
            f"{{kubectl}} logs {pod.name} --container {waiting[0]} --tail 20",
        )
    return (f"is {_phase(pod)}", "see what it waits for:", describe)


def _why_container(pod: Pod, container: ContainerStatus, lines: Mapping[str, str]) -> tuple[str, ...]:
    waiting = container.state.waiting
    logs = f"{{kubectl}} logs {pod.name} --container {container.name} --previous --tail 20"
    if waiting is not None and waiting.reason in ("ImagePullBackOff", "ErrImagePull", "InvalidImageName"):
        return (
            (
                f"gets no image for its container {container.name}: {waiting.reason}: "
                f"{_bounded(waiting.message)}"
            ),
            (
                "say image.repository and image.tag in the chart's values as you have pushed it "
                "(there is no published image); what it asks for shows"
            ),
            f"{{kubectl}} get pod {pod.name} --output jsonpath='{{{{.spec.containers[*].image}}}}'",
        )
    if waiting is not None and waiting.reason == "CrashLoopBackOff":
        ended = container.last_state.terminated
        how = f" with {ended.reason or 'status'} {ended.exit_code}" if ended else ""
        return (
            (
                f"ends again and again: container {container.name}, {container.restart_count} times{how}"
                f"{_last(pod, lines)}"
            ),
            "mend what it says last; more of it shows",
            logs,
        )
    if waiting is not None and waiting.reason in ("CreateContainerConfigError", "CreateContainerError"):
        return (
            f"cannot start its container {container.name}: {waiting.reason}: {_bounded(waiting.message)}",
            "mend what it names",
            f"{{kubectl}} describe pod {pod.name}",
        )
    return ()


def _of_event(event: PodEvent) -> tuple[str, ...]:
    if event.reason == "FailedMount" and "talos-secrets" in event.message:
        return ("Talos has not written that Secret: see the check talos-credential, and",)
    if event.reason == "FailedMount" and "-nats-" in event.message:
        return ("NATS' init container `bootstrap` makes that Secret: see what it says, and",)
    return ("see what it waits for:",)


def _last(pod: Pod, lines: Mapping[str, str]) -> str:
    line = lines.get(pod.name, "")
    return f"; its last line: {_bounded(line)}" if line else ""


def _phase(pod: Pod) -> str:
    return pod.status.reason or pod.status.phase or "Pending"


def _bounded(text: str) -> str:
    """One line of somebody else's."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def versions(seen: Seen) -> Iterator[Finding]:
    """Is everything of one version, and this command, too?"""
    installation = seen.installation
    if installation.assumed:
        yield not_looked_at(seen)
        return
    workloads = [process.workload for process in installation.processes]
    images = {p.workload.name: p.container.image for p in installation.processes}
    charts = {w.name: w.metadata.labels.get(_VERSION, "") for w in workloads}
    again = installation.apply_again
    if len(set(images.values())) > 1:
        yield wrong(f"different images run: {_differing(images)}", "install one version of all:", again)
    if len(set(charts.values())) > 1:
        yield wrong(f"workloads are of different charts: {_differing(charts)}", "apply one chart:", again)
        return
    chart, image = next(iter(charts.values()), ""), next(iter(images.values()), "")
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    if len(set(images.values())) == 1 and chart and _is_release(tag) and _plain(tag) != _plain(chart):
        yield wrong(
            f"the chart of {chart} runs the image {image}",
            f"take image.tag out of the values, or say {chart} there, and upgrade:",
            again,
        )
    if chart and _plain(chart) != _plain(seen.version):
        yield wrong(
            f"this talos-ccm is {seen.version}, and {chart} is installed: it would check for what "
            "is not there",
            f"use the talos-ccm of {chart}, or install {seen.version}:",
            again,
        )
    elif not chart:
        yield unknown(f"the workloads bear no label {_VERSION}", "apply the chart, which sets it:", again)
    elif len(set(images.values())) == 1:
        yield ok(f"{chart}, all of image {image}, as this talos-ccm")


def _is_release(tag: str) -> bool:
    return _RELEASED.fullmatch(tag) is not None


def _plain(version: str) -> str:
    return version.removeprefix("v")


def _differing(by_name: Mapping[str, str]) -> str:
    groups: dict[str, list[str]] = {}
    for name, value in by_name.items():
        groups.setdefault(value, []).append(name)
    return "; ".join(
        f"{truncate_line(value) or '(none)'} ({few(names)})" for value, names in sorted(groups.items())
    )


def pod_security(seen: Seen) -> Iterator[Finding]:
    """Does the namespace take the pods? All are `restricted`, but those on the host network."""
    installation = seen.installation
    if installation.assumed:
        yield not_looked_at(seen)
        return
    hosts = [w for w in installation.workloads if w.pod.host_network]
    name = installation.namespace
    if isinstance(seen.namespace_labels, NotSeen):
        told = seen.namespace_labels
        yield unknown(f"the labels of namespace {name} are not known: {told.why}", told.fix, *told.commands)
        return
    level = seen.namespace_labels.get(_ENFORCE, "")
    refused = [w for w in hosts if level in ("baseline", "restricted") and name != "kube-system"]
    if refused:
        yield wrong(
            f"{refused[0]} is on the host network, and namespace {name} enforces {level}, which refuses that",
            "let it:",
            f"kubectl label namespace {name} {_ENFORCE}=privileged --overwrite",
        )
    elif hosts and name != "kube-system" and not level and not any(w.ready for w in hosts):
        yield wrong(
            f"{hosts[0]} is on the host network and has no pod; namespace {name} has no label "
            f"{_ENFORCE}, and "
            "Talos enforces baseline everywhere but in kube-system",
            "let it:",
            f"kubectl label namespace {name} {_ENFORCE}=privileged",
        )
    else:
        what = "on the host network" if hosts else "restricted"
        yield ok(f"pods are {what}; namespace {name} enforces {level or 'what the cluster does'}")
