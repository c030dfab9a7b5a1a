"""The flags of the three servers. Paths are relative to the run directory, where the servers start."""

from __future__ import annotations

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""

# With the Node after each write and the content of each Event, to find the writer of each field; with the
# holder of each Lease of a controller, to find out whether a writer led; with certificate requests, of which
# a restore of etcd loses some.
FIELD_AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: RequestResponse
  verbs: [create, update, patch, delete]
  resources:
  - {group: "", resources: [nodes, nodes/status, events]}
  - {group: certificates.k8s.io, resources: ["*"]}
- level: RequestResponse
  verbs: [create, update]
  namespaces: [kube-system]
  resources:
  - {group: coordination.k8s.io, resources: [leases]}
- level: Metadata
"""

# Benchmarks send thousands of requests a second; the default of 20 would limit them.
_MANAGER_QPS = 5000
# Simulated kubelets send heartbeats only on request. With the default of 50 s, the controller manager would
# taint thousands of Nodes during a measurement.
LONG_GRACE_SECONDS = 3600.0  # seconds
_LONGEST_PERIOD = 5.0  # seconds between two checks of the heartbeats, the default

# Storage, jobs, scaling and quotas: no test has such objects, and without these controllers an idle
# controller manager takes two fifths less CPU. Node IPAM is off because ours allocates the pod CIDRs.
_CONTROLLERS_OFF = (
    "node-ipam-controller",
    "cronjob-controller",
    "device-taint-eviction-controller",
    "ephemeral-volume-controller",
    "horizontal-pod-autoscaler-controller",
    "job-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-expander-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "replicationcontroller-controller",
    "resourceclaim-controller",
    "resourcequota-controller",
    "storage-version-migrator-controller",
    "ttl-after-finished-controller",
    "volumeattributesclass-protection-controller",
)

ETCD_DATA = "etcd"


def build_etcd_flags(port: int, peer_port: int) -> list[str]:
    """Return the flags of a single etcd member that does not sync to disk."""
    peer = f"http://127.0.0.1:{peer_port}"
    return [
        "--name=testbed",
        f"--data-dir={ETCD_DATA}",
        "--unsafe-no-fsync",
        f"--listen-client-urls=http://127.0.0.1:{port}",
        f"--advertise-client-urls=http://127.0.0.1:{port}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=testbed={peer}",
        "--log-level=warn",
    ]


def build_apiserver_flags(port: int, etcd_port: int) -> list[str]:
    """Return the flags as Talos sets them: dual stack, Node and RBAC authorization, NodeRestriction."""
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        # Unused, but must not be a loopback address; without it the server requires a default route.
        "--advertise-address=192.0.2.1",
        "--tls-cert-file=apiserver.crt",
        "--tls-private-key-file=apiserver.key",
        "--client-ca-file=ca.crt",
        "--service-account-key-file=service-account.crt",
        "--service-account-signing-key-file=service-account.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        # One file for the whole run: a rotation would lose counts.
        "--audit-policy-file=audit.yaml",
        "--audit-log-path=audit.log",
        "--audit-log-maxsize=100000",
    ]


def build_controller_manager_flags(*, grace_seconds: float = LONG_GRACE_SECONDS) -> list[str]:
    """Return the flags as Talos sets them with an external cloud provider. The signer has no limit.

    After `grace_seconds` without a heartbeat, the condition Ready of a Node becomes Unknown.
    """
    return [
        "--kubeconfig=controller-manager.kubeconfig",
        "--cloud-provider=external",
        f"--controllers={','.join(['*', *(f'-{name}' for name in _CONTROLLERS_OFF)])}",
        "--use-service-account-credentials=true",
        "--cluster-signing-cert-file=ca.crt",
        "--cluster-signing-key-file=ca.key",
        "--root-ca-file=ca.crt",
        "--service-account-private-key-file=service-account.key",
        "--leader-elect=false",
        "--secure-port=0",
        f"--node-monitor-grace-period={grace_seconds:g}s",
        f"--node-monitor-period={min(_LONGEST_PERIOD, grace_seconds / 4):g}s",
        f"--kube-api-qps={_MANAGER_QPS}",
        f"--kube-api-burst={2 * _MANAGER_QPS}",
    ]
