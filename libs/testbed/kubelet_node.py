"""The objects of kubelet 1.36 with --cloud-provider=external and --node-ip (kubelet_node_status.go)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from libs.testbed.machine_facts import SimMachineFacts

UNINITIALIZED = {
    "key": "node.cloudprovider.kubernetes.io/uninitialized",
    "value": "true",
    "effect": "NoSchedule",
}
PROVIDED_NODE_IP = "alpha.kubernetes.io/provided-node-ip"

_PRESSURES = {
    "MemoryPressure": "KubeletHasSufficientMemory",
    "DiskPressure": "KubeletHasNoDiskPressure",
    "PIDPressure": "KubeletHasSufficientPID",
}


class SimKubelet(msgspec.Struct, frozen=True, kw_only=True):
    """A kubelet: its flags and its machine."""

    name: str
    ips: tuple[str, ...] = ("10.0.0.5",)  # --node-ip: one address, or one of each family
    system_uuid: str = ""  # "": derived from the name
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    taints: tuple[Mapping[str, str], ...] = ()
    is_uninitialized: bool = True  # --cloud-provider=external
    provided_node_ip: str | None = None  # the value of the annotation; None: the ips, as an honest kubelet
    version: str = "v1.36.3"

    @classmethod
    def of_machine(cls, machine: SimMachineFacts, **flags: Any) -> SimKubelet:
        """Return the kubelet of a Talos machine."""
        information = machine.system_information
        facts: dict[str, Any] = {
            "name": machine.name,
            "ips": machine.reachable_at,
            "system_uuid": information.uuid if information else "",
        }
        return cls(**facts | flags)


def build_registered_node(kubelet: SimKubelet, now: datetime) -> dict[str, Any]:
    """Return the Node that the kubelet creates: with its complete status, not ready yet."""
    taints = [dict(taint) for taint in kubelet.taints]
    annotations = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"} | dict(
        kubelet.annotations
    )
    if kubelet.is_uninitialized:
        taints.append(UNINITIALIZED)
        provided = kubelet.provided_node_ip
        annotations[PROVIDED_NODE_IP] = ",".join(kubelet.ips) if provided is None else provided
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": kubelet.name, "labels": _build_labels(kubelet), "annotations": annotations},
        "spec": {"taints": taints} if taints else {},
        "status": _build_status(kubelet, now),
    }


def build_ready_status(now: datetime) -> dict[str, Any]:
    """Return the status that the kubelet reports once it is ready."""
    return {"conditions": _build_conditions(now, ready=True)}


def build_not_ready_status(now: datetime) -> dict[str, Any]:
    """Return the status of a running kubelet that cannot run Pods."""
    return {"conditions": _build_conditions(now, ready=False)}


def build_unreachable_status(now: datetime) -> dict[str, Any]:
    """Return the status that kube-controller-manager writes after the grace period without a heartbeat."""
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    return {"conditions": [{**unknown, "lastTransitionTime": format_time(now)}]}


def build_heartbeat_status(now: datetime) -> dict[str, Any]:
    """Return the status that the kubelet reports without a change."""
    return {
        "conditions": [
            {"type": kind, "lastHeartbeatTime": format_time(now)} for kind in (*_PRESSURES, "Ready")
        ]
    }


def build_node_lease(name: str, now: datetime) -> dict[str, Any]:
    """Return the node's Lease, renewed now."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": 40,
            "renewTime": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        },
    }


def _build_labels(kubelet: SimKubelet) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": kubelet.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "amd64",
    } | dict(kubelet.labels)


def _build_status(kubelet: SimKubelet, now: datetime) -> dict[str, Any]:
    identity = kubelet.system_uuid or str(uuid.uuid5(uuid.NAMESPACE_DNS, kubelet.name))
    amounts = {"cpu": "4", "memory": "8Gi", "ephemeral-storage": "50Gi", "pods": "110"}
    addresses = [{"type": "InternalIP", "address": ip} for ip in kubelet.ips]
    return {
        "addresses": [*addresses, {"type": "Hostname", "address": kubelet.name}],
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": _build_conditions(now, ready=False),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "machineID": identity.replace("-", ""),
            "systemUUID": identity,
            "bootID": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"boot.{kubelet.name}")),
            "kernelVersion": "6.18.5-talos",
            "osImage": "Talos (v1.13.5)",
            "containerRuntimeVersion": "containerd://2.2.1",
            "kubeletVersion": kubelet.version,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }


def _build_conditions(now: datetime, *, ready: bool) -> list[dict[str, str]]:
    states = [(kind, "False", reason) for kind, reason in _PRESSURES.items()]
    states.append(("Ready", "True", "KubeletReady") if ready else ("Ready", "False", "KubeletNotReady"))
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "lastHeartbeatTime": format_time(now),
            "lastTransitionTime": format_time(now),
        }
        for kind, status, reason in states
    ]


def format_time(moment: datetime) -> str:
    """Return a time as Kubernetes writes it, in seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
