"""Whether the services run, have one version, and are admitted by the namespace. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cli.cluster.kube_objects import Workload
from cli.cluster.pods import Pod
from cli.cluster.unavailable import Unavailable
from cli.doctor.findings import Check, Finding
from cli.doctor.snapshot import InstallationSnapshot, UnreadyPods
from cli.lines import format_names, shorten
from libs.common.cloud_config.findings import truncate_line

_VERSION: Final = "app.kubernetes.io/version"
_RELEASED: Final = re.compile(r"v?\d+\.\d+\.\d+([-+].*)?")
_ENFORCE: Final = "pod-security.kubernetes.io/enforce"
_LONGEST: Final = 300  # maximum characters of a message from outside
_NEEDED: Final = ("watcher", "metadata")


def check_services(seen: InstallationSnapshot) -> Check:
    """Check that every pod is ready; otherwise report the reason."""
    for workload in seen.installation.workloads:
        if workload.ready_pods < max(workload.desired_pods, 1):
            yield _report_unready(seen, workload)
    for service in _NEEDED:
        if not seen.installation.runs_service(service):
            yield Finding.wrong(
                f"{service} is not installed; without it, no other service receives events",
                "create it again:",
                seen.installation.reapply_command,
            )
    prefix = f"{seen.installation.prefix}-"
    names = [(w.name.removeprefix(prefix), w) for w in seen.installation.workloads]
    return f"ready: {', '.join(f'{name} {w.ready_pods}/{w.desired_pods}' for name, w in names)}"


def _report_unready(seen: InstallationSnapshot, workload: Workload) -> Finding:
    kubectl, kind = seen.installation.kubectl, workload.kind.lower()
    if not workload.desired_pods:
        if workload.kind == "DaemonSet":
            return Finding.wrong(
                f"{workload} matches no node: no node has the labels of its nodeSelector",
                "set nodeSelector in the chart's values to labels of your control planes, and upgrade. To "
                "see the labels:",
                "kubectl get nodes --show-labels",
            )
        return Finding.wrong(
            f"{workload} is scaled to 0",
            "scale it up:",
            f"{kubectl} scale {kind} {workload.name} --replicas=1",
        )
    head = f"{workload} has {workload.ready_pods} of {workload.desired_pods} pods ready"
    for condition in workload.status.conditions:
        if condition.type == "ReplicaFailure" and condition.status == "True":
            return Finding.wrong(
                f"{head}: {shorten(condition.message, _LONGEST)}",
                "correct what rejects its pods; the description gives the reason:",
                f"{kubectl} describe {kind} {workload.name}",
            )
    if isinstance(seen.pods, Unavailable):
        return Finding.wrong(
            f"{head}; the reason is unknown: {seen.pods.explanation}", seen.pods.fix, *seen.pods.commands
        )
    own = (pod for pod in seen.pods if pod.name.startswith(f"{workload.name}-"))
    pods = [pod for pod in own if not pod.has_condition("Ready")]
    if not pods:
        return Finding.wrong(
            f"{head}, and the other pods were not created",
            "see the reason:",
            f"{kubectl} describe {kind} {workload.name}",
        )
    text, given = _explain_pod(pods[0], seen.unready)
    return Finding.wrong(
        f"{head}: pod {pods[0].name} {text.problem.format(**given)}",
        text.fix,
        text.command.format(**given, kubectl=kubectl),
    )


class _PodText(msgspec.Struct, frozen=True):
    """The problem of a pod, its fix and a command, with placeholders."""

    problem: str
    fix: str
    command: str = "{kubectl} describe pod {pod}"


_PULL: Final = _PodText(
    "cannot pull the image of container {container}: {reason}: {message}",
    "set image.repository and image.tag in the chart's values to the image that you have "
    "pushed (there is no published image). To see the configured image:",
    "{kubectl} get pod {pod} --output jsonpath='{{.spec.containers[*].image}}'",
)
_CREATE: Final = _PodText(
    "cannot start container {container}: {reason}: {message}", "correct the named problem:"
)
# By the reason for which a container waits.
_WAITING: Final[Mapping[str, _PodText]] = {
    "ImagePullBackOff": _PULL,
    "ErrImagePull": _PULL,
    "InvalidImageName": _PULL,
    "CreateContainerConfigError": _CREATE,
    "CreateContainerError": _CREATE,
    "CrashLoopBackOff": _PodText(
        "restarts repeatedly: container {container}, {restarts} times{ended}{line}",
        "correct what the last log lines report:",
        "{kubectl} logs {pod} --container {container} --previous --tail 20",
    ),
}
_UNSCHEDULED: Final = _PodText(
    "fits no node: {message}",
    "set nodeSelector and tolerations in the chart's values to match your control planes:",
    "kubectl get nodes --output custom-columns=NAME:.metadata.name,TAINTS:.spec.taints[*].key",
)
_FAILED: Final = _PodText("is {phase}: {reason}: {message}", "see what it waits for:")
# By a part of the message of a FailedMount Event.
_FAILED_MOUNT: Final[Mapping[str, str]] = {
    "talos-secrets": "Talos has not written that Secret: see the check talos-credential, and",
    "-nats-": "the init container `bootstrap` of NATS creates that Secret: see its log, and",
}
_NOT_READY: Final = _PodText(
    "runs, but its container {container} is not ready{line}",
    "its log and /readyz?verbose on its port (docs/processes.md) give the reason:",
    "{kubectl} logs {pod} --container {container} --tail 20",
)
_OTHERWISE: Final = _PodText("is {phase}", "see what it waits for:")


def _explain_pod(pod: Pod, unready: UnreadyPods) -> tuple[_PodText, dict[str, Any]]:
    """Return the text of the pod's problem, and the values of its placeholders."""
    line = unready.last_lines.get(pod.name, "")
    given: dict[str, Any] = {
        "pod": pod.name,
        "phase": pod.status.reason or pod.status.phase or "Pending",
        "line": f"; last log line: {shorten(line, _LONGEST)}" if line else "",
    }
    for container in pod.all_containers:
        waiting, ended = container.state.waiting, container.last_state.terminated
        if waiting is not None and waiting.reason in _WAITING:
            return _WAITING[waiting.reason], given | {
                "container": container.name,
                "reason": waiting.reason,
                "message": shorten(waiting.message, _LONGEST),
                "restarts": container.restart_count,
                "ended": f" with {ended.reason or 'status'} {ended.exit_code}" if ended else "",
            }
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return _UNSCHEDULED, given | {"message": shorten(condition.message, _LONGEST)}
    failed = [e for e in unready.events if e.involved_object.name == pod.name and e.type == "Warning"]
    if failed:
        reason, message = failed[-1].reason, failed[-1].message
        fixes = [fix for part, fix in _FAILED_MOUNT.items() if reason == "FailedMount" and part in message]
        text = msgspec.structs.replace(_FAILED, fix=fixes[0]) if fixes else _FAILED
        return text, given | {"reason": reason, "message": shorten(message, _LONGEST)}
    waits = [each.name for each in pod.status.container_statuses if not each.ready]
    if waits and pod.status.phase == "Running":
        return _NOT_READY, given | {"container": waits[0]}
    return _OTHERWISE, given


def check_versions(seen: InstallationSnapshot) -> Check:
    """Check that all workloads and this command have the same version."""
    here = seen.installation
    images = {process.workload.name: process.container.image for process in here.processes}
    charts = {each.workload.name: each.workload.metadata.labels.get(_VERSION, "") for each in here.processes}
    again, chart, image = here.reapply_command, next(iter(charts.values())), next(iter(images.values()))
    has_one_image = len(set(images.values())) == 1
    if not has_one_image:
        yield Finding.wrong(
            f"the pods run different images: {_format_differences(images)}",
            "install the same version everywhere:",
            again,
        )
    if len(set(charts.values())) > 1:
        yield Finding.wrong(
            f"the workloads come from different chart versions: {_format_differences(charts)}",
            "apply one chart version:",
            again,
        )
        return ""
    if not chart:
        yield Finding.unknown(
            f"the workloads have no label {_VERSION}", "apply the chart, which sets it:", again
        )
        return ""
    tag, version = image.partition("@")[0].rpartition("/")[2].partition(":")[2], chart.removeprefix("v")
    if has_one_image and _RELEASED.fullmatch(tag) and tag.removeprefix("v") != version:
        yield Finding.wrong(
            f"chart version {chart} runs image {image}",
            f"remove image.tag from the values, or set it to {chart}, and upgrade:",
            again,
        )
    if version != seen.version.removeprefix("v"):
        yield Finding.wrong(
            f"this talos-ccm has version {seen.version}, but {chart} is installed, so the checks may not "
            "apply",
            f"use talos-ccm {chart}, or install {seen.version}:",
            again,
        )
    return f"{chart}, all with image {image}, same version as this talos-ccm"


def _format_differences(by_name: Mapping[str, str]) -> str:
    groups: dict[str, list[str]] = {}
    for name, value in by_name.items():
        groups.setdefault(value, []).append(name)
    return "; ".join(
        f"{truncate_line(value) or '(none)'} ({format_names(names)})"
        for value, names in sorted(groups.items())
    )


def check_pod_security(seen: InstallationSnapshot) -> Check:
    """Check that the namespace admits the pods.

    All comply with `restricted`, except those on the host network.
    """
    name, labels = seen.installation.namespace, seen.namespace_labels
    if isinstance(labels, Unavailable):
        yield Finding.unavailable(f"the labels of namespace {name} are unknown", labels)
        return ""
    level, label = labels.get(_ENFORCE, ""), f"kubectl label namespace {name} {_ENFORCE}=privileged"
    hosts = [workload for workload in seen.installation.workloads if workload.pod.host_network]
    is_restricted = bool(hosts) and name != "kube-system"
    if is_restricted and level in ("baseline", "restricted"):
        yield Finding.wrong(
            f"{hosts[0]} uses the host network, but namespace {name} enforces {level}, which rejects that",
            "allow it:",
            f"{label} --overwrite",
        )
    elif is_restricted and not level and not any(workload.ready_pods for workload in hosts):
        yield Finding.wrong(
            f"{hosts[0]} uses the host network and has no pod; namespace {name} has no label {_ENFORCE}, "
            "and Talos enforces baseline everywhere except in kube-system",
            "allow it:",
            label,
        )
    what = "on the host network" if hosts else "restricted"
    return f"pods are {what}; namespace {name} enforces {level or 'the default of the cluster'}"
