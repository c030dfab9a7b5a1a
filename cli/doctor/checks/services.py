"""Whether the services run, have one version, and are admitted by the namespace. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from cli.cluster.kube_events import KubeEvent
from cli.cluster.kube_objects import COMPONENT, INSTANCE, Workload
from cli.cluster.pods import ContainerStatus, Pod
from cli.cluster.unavailable import Unavailable
from cli.doctor.findings import (
    Finding,
    format_names,
    report_ok,
    report_unavailable,
    report_unknown,
    report_wrong,
)
from cli.doctor.snapshot import InstallationSnapshot, UnreadyPods
from libs.common.cloud_config.findings import truncate_line

_VERSION: Final = "app.kubernetes.io/version"
_RELEASED: Final = re.compile(r"v?\d+\.\d+\.\d+([-+].*)?")
_ENFORCE: Final = "pod-security.kubernetes.io/enforce"
_LONGEST: Final = 300  # maximum characters of a message from outside
_NEEDED: Final = ("watcher", "metadata")


def check_services(seen: InstallationSnapshot) -> Iterator[Finding]:
    """Check that every pod is ready; otherwise report the reason."""
    if seen.installation.assumed_reason:
        yield report_assumed_installation(seen)
        return
    bad = [
        workload
        for workload in seen.installation.workloads
        if workload.ready_pods < max(workload.desired_pods, 1)
    ]
    for workload in bad:
        yield _report_unready(seen, workload)
    for service in _NEEDED:
        if not seen.installation.runs_service(service):
            yield report_wrong(
                f"{service} is not installed; without it, no other service receives events",
                "create it again:",
                seen.installation.reapply_command,
            )
    if not bad:
        prefix = f"{seen.installation.prefix}-"
        names = [(w.name.removeprefix(prefix), w) for w in seen.installation.workloads]
        counts = [f"{name} {w.ready_pods}/{w.desired_pods}" for name, w in names]
        yield report_ok(f"ready: {', '.join(counts)}")


def report_assumed_installation(seen: InstallationSnapshot) -> Finding:
    """Return an unknown finding, because the actual installation could not be read."""
    installation = seen.installation
    return report_unknown(
        f"the installed workloads are unknown: {installation.assumed_reason}",
        "use credentials that may list deployments, daemonsets and statefulsets there:",
        f"{installation.kubectl} auth can-i list deployments.apps",
    )


def _report_unready(seen: InstallationSnapshot, workload: Workload) -> Finding:
    kubectl, kind = seen.installation.kubectl, workload.kind.lower()
    if not workload.desired_pods:
        if workload.kind == "DaemonSet":
            return report_wrong(
                f"{workload} matches no node: no node has the labels of its nodeSelector",
                "set nodeSelector in the chart's values to labels of your control planes, and upgrade. To "
                "see the labels:",
                "kubectl get nodes --show-labels",
            )
        return report_wrong(
            f"{workload} is scaled to 0",
            "scale it up:",
            f"{kubectl} scale {kind} {workload.name} --replicas=1",
        )
    head = f"{workload} has {workload.ready_pods} of {workload.desired_pods} pods ready"
    for condition in workload.status.conditions:
        if condition.type == "ReplicaFailure" and condition.status == "True":
            return report_wrong(
                f"{head}: {_truncate_line(condition.message)}",
                "correct what rejects its pods; the description gives the reason:",
                f"{kubectl} describe {kind} {workload.name}",
            )
    if isinstance(seen.pods, Unavailable):
        return report_wrong(
            f"{head}; the reason is unknown: {seen.pods.explanation}", seen.pods.fix, *seen.pods.commands
        )
    pods = [pod for pod in select_pods(workload, seen.pods) if not pod.has_condition("Ready")]
    if not pods:
        return report_wrong(
            f"{head}, and the other pods were not created",
            "see the reason:",
            f"{kubectl} describe {kind} {workload.name}",
        )
    pod = pods[0]
    why, fix, *commands = _explain_pod(pod, seen.unready)
    return report_wrong(f"{head}: pod {pod.name} {why}", fix, *(c.format(kubectl=kubectl) for c in commands))


def select_pods(workload: Workload, pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods of the workload: the same release and component."""
    labels = workload.metadata.labels
    same = (INSTANCE, COMPONENT)
    return [
        pod
        for pod in pods
        if all(pod.metadata.labels.get(key, "") == labels.get(key, "") for key in same)
        and pod.name.startswith(f"{workload.name}-")
    ]


def _explain_pod(pod: Pod, unready: UnreadyPods) -> tuple[str, ...]:
    """Return the problem of a pod, the fix and the commands; commands contain {kubectl}."""
    describe = f"{{kubectl}} describe pod {pod.name}"
    status = pod.status
    for container in pod.all_containers:
        if finding := _explain_container(pod, container, unready.last_lines):
            return finding
    for condition in pod.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return (
                f"fits no node: {_truncate_line(condition.message)}",
                "set nodeSelector and tolerations in the chart's values to match your control planes:",
                "kubectl get nodes --output custom-columns=NAME:.metadata.name,TAINTS:.spec.taints[*].key",
            )
    failed = [e for e in unready.events if e.involved_object.name == pod.name and e.type == "Warning"]
    if failed:
        last = failed[-1]
        return (
            f"is {_describe_phase(pod)}: {last.reason}: {_truncate_line(last.message or '')}",
            *_explain_event(last),
            describe,
        )
    waiting = [c.name for c in pod.containers if not c.ready]
    if waiting and status.phase == "Running":
        said = _get_last_line(pod, unready.last_lines)
        return (
            f"runs, but its container {waiting[0]} is not ready{said}",
            "its log and /readyz?verbose on its port (docs/processes.md) give the reason:",
            f"{{kubectl}} logs {pod.name} --container {waiting[0]} --tail 20",
        )
    return (f"is {_describe_phase(pod)}", "see what it waits for:", describe)


def _explain_container(pod: Pod, container: ContainerStatus, lines: Mapping[str, str]) -> tuple[str, ...]:
    waiting = container.state.waiting
    logs = f"{{kubectl}} logs {pod.name} --container {container.name} --previous --tail 20"
    if waiting is not None and waiting.reason in ("ImagePullBackOff", "ErrImagePull", "InvalidImageName"):
        return (
            (
                f"cannot pull the image of container {container.name}: {waiting.reason}: "
                f"{_truncate_line(waiting.message)}"
            ),
            (
                "set image.repository and image.tag in the chart's values to the image that you have "
                "pushed (there is no published image). To see the configured image:"
            ),
            f"{{kubectl}} get pod {pod.name} --output jsonpath='{{{{.spec.containers[*].image}}}}'",
        )
    if waiting is not None and waiting.reason == "CrashLoopBackOff":
        ended = container.last_state.terminated
        how = f" with {ended.reason or 'status'} {ended.exit_code}" if ended else ""
        return (
            (
                f"restarts repeatedly: container {container.name}, {container.restart_count} "
                f"times{how}{_get_last_line(pod, lines)}"
            ),
            "correct what the last log lines report:",
            logs,
        )
    if waiting is not None and waiting.reason in ("CreateContainerConfigError", "CreateContainerError"):
        return (
            (f"cannot start container {container.name}: {waiting.reason}: {_truncate_line(waiting.message)}"),
            "correct the named problem:",
            f"{{kubectl}} describe pod {pod.name}",
        )
    return ()


def _explain_event(event: KubeEvent) -> tuple[str, ...]:
    if event.reason == "FailedMount" and "talos-secrets" in event.message:
        return ("Talos has not written that Secret: see the check talos-credential, and",)
    if event.reason == "FailedMount" and "-nats-" in event.message:
        return ("the init container `bootstrap` of NATS creates that Secret: see its log, and",)
    return ("see what it waits for:",)


def _get_last_line(pod: Pod, lines: Mapping[str, str]) -> str:
    line = lines.get(pod.name, "")
    return f"; last log line: {_truncate_line(line)}" if line else ""


def _describe_phase(pod: Pod) -> str:
    return pod.status.reason or pod.status.phase or "Pending"


def _truncate_line(text: str) -> str:
    """Return the message in one line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def check_versions(seen: InstallationSnapshot) -> Iterator[Finding]:
    """Check that all workloads and this command have the same version."""
    installation = seen.installation
    if installation.assumed_reason:
        yield report_assumed_installation(seen)
        return
    workloads = [process.workload for process in installation.processes]
    images = {p.workload.name: p.container.image for p in installation.processes}
    charts = {w.name: w.metadata.labels.get(_VERSION, "") for w in workloads}
    again = installation.reapply_command
    if len(set(images.values())) > 1:
        yield report_wrong(
            f"the pods run different images: {_format_differences(images)}",
            "install the same version everywhere:",
            again,
        )
    if len(set(charts.values())) > 1:
        yield report_wrong(
            f"the workloads come from different chart versions: {_format_differences(charts)}",
            "apply one chart version:",
            again,
        )
        return
    chart, image = next(iter(charts.values()), ""), next(iter(images.values()), "")
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    if (
        len(set(images.values())) == 1
        and chart
        and _is_release(tag)
        and _normalize_version(tag) != _normalize_version(chart)
    ):
        yield report_wrong(
            f"chart version {chart} runs image {image}",
            f"remove image.tag from the values, or set it to {chart}, and upgrade:",
            again,
        )
    if chart and _normalize_version(chart) != _normalize_version(seen.version):
        yield report_wrong(
            f"this talos-ccm has version {seen.version}, but {chart} is installed, so the checks may not "
            "apply",
            f"use talos-ccm {chart}, or install {seen.version}:",
            again,
        )
    elif not chart:
        yield report_unknown(
            f"the workloads have no label {_VERSION}", "apply the chart, which sets it:", again
        )
    elif len(set(images.values())) == 1:
        yield report_ok(f"{chart}, all with image {image}, same version as this talos-ccm")


def _is_release(tag: str) -> bool:
    return _RELEASED.fullmatch(tag) is not None


def _normalize_version(version: str) -> str:
    return version.removeprefix("v")


def _format_differences(by_name: Mapping[str, str]) -> str:
    groups: dict[str, list[str]] = {}
    for name, value in by_name.items():
        groups.setdefault(value, []).append(name)
    return "; ".join(
        f"{truncate_line(value) or '(none)'} ({format_names(names)})"
        for value, names in sorted(groups.items())
    )


def check_pod_security(seen: InstallationSnapshot) -> Iterator[Finding]:
    """Check that the namespace admits the pods.

    All comply with `restricted`, except those on the host network.
    """
    installation = seen.installation
    if installation.assumed_reason:
        yield report_assumed_installation(seen)
        return
    hosts = [w for w in installation.workloads if w.pod.host_network]
    name = installation.namespace
    if isinstance(seen.namespace_labels, Unavailable):
        yield report_unavailable(f"the labels of namespace {name} are unknown", seen.namespace_labels)
        return
    level = seen.namespace_labels.get(_ENFORCE, "")
    refused = [w for w in hosts if level in ("baseline", "restricted") and name != "kube-system"]
    if refused:
        yield report_wrong(
            f"{refused[0]} uses the host network, but namespace {name} enforces {level}, which rejects that",
            "allow it:",
            f"kubectl label namespace {name} {_ENFORCE}=privileged --overwrite",
        )
    elif hosts and name != "kube-system" and not level and not any(w.ready_pods for w in hosts):
        yield report_wrong(
            f"{hosts[0]} uses the host network and has no pod; namespace {name} has no label {_ENFORCE}, "
            "and Talos enforces baseline everywhere except in kube-system",
            "allow it:",
            f"kubectl label namespace {name} {_ENFORCE}=privileged",
        )
    else:
        what = "on the host network" if hosts else "restricted"
        yield report_ok(f"pods are {what}; namespace {name} enforces {level or 'the default of the cluster'}")
