"""The problems that keep a Node unusable: a sentence for the cause, a line for the fix. Pure.

docs/stuck-nodes.md contains the same texts.
"""

from collections.abc import Mapping
from typing import Final

import msgspec


class FaultText(msgspec.Struct, frozen=True):
    """The cause, the fix and the effect of one fault.

    Without an effect of its own, the Node is not initialized, or its machine does not confirm it.
    Placeholders: {node} is its name, {ip} its address, {detail} the reported detail, {namespace} that of the
    chart's pods, {service} the component of some of them. {csr} is the kubelet's newest request for a
    certificate. {account} is a cloud account, {server} the providerID, {release} what would let lifecycle
    delete the Node.
    """

    cause: str
    fix: str
    what: str = ""  # what the Node is, or what it lacks
    service: str = ""  # the component whose unready pods belong to the detail


NO_INITIALIZER: Final = "not initialized by any controller"
WITHOUT_POD_CIDR: Final = "without a pod CIDR"
_FOREIGN: Final = "managed by another controller"
_WITHOUT_SERVER: Final = "without a server"
_WITHOUT_CERTIFICATE: Final = "without a serving certificate"
_EXTERNAL: Final = (
    "Set cluster.externalCloudProvider.enabled: true in its machine config (talosctl -n {ip} "
    "edit machineconfig): its kubelet then restarts with --cloud-provider=external."
)
_LOGS: Final = (
    "The log gives the reason: kubectl -n {namespace} logs -l app.kubernetes.io/component={service} "
    "--tail=50."
)

UNINITIALIZED: Final = "not initialized"
_UNCONFIRMED: Final = "initialized, but its machine does not confirm it"

FAULT_TEXTS: Final[Mapping[str, FaultText]] = {
    # kubelet
    "kubelet-not-external": FaultText(
        "Its kubelet runs without --cloud-provider=external: it registered without the taint and the "
        "annotation alpha.kubernetes.io/provided-node-ip, so no controller initializes the Node.",
        _EXTERNAL,
        NO_INITIALIZER,
    ),
    "no-node-ip": FaultText(
        "It has the taint but no annotation alpha.kubernetes.io/provided-node-ip, so its machine is "
        "unknown: its kubelet now runs without --cloud-provider=external or without --node-ip.",
        _EXTERNAL,
    ),
    "bad-node-ip": FaultText(
        "The address that its kubelet announces cannot be dialed: {detail}.",
        "Correct machine.kubelet.nodeIP.validSubnets in its machine config (--node-ip of the kubelet).",
    ),
    "node-ip-of-another": FaultText(
        "Its kubelet announces an address of another machine: {detail}.",
        "Correct machine.kubelet.nodeIP.validSubnets in its machine config (--node-ip of the kubelet).",
    ),
    "node-ip-not-on-machine": FaultText(
        "Its machine does not have the address that the providerID would contain: {detail}.",
        "Correct its link, or machine.kubelet.nodeIP.validSubnets in its machine config (--node-ip of the "
        "kubelet).",
    ),
    "not-ready": FaultText(
        "Its kubelet is not ready: {detail}.",
        "For details: talosctl -n {ip} service kubelet; talosctl -n {ip} logs kubelet.",
        "not ready",
    ),
    "not-ready-taint": FaultText(
        "Its kubelet is ready, but it still has the taint {detail}, which keeps pods away.",
        "kube-controller-manager removes this taint. Check that it runs: kubectl -n kube-system get pods.",
        "not schedulable",
    ),
    "kubelet-silent": FaultText(
        "Its kubelet has stopped reporting: {detail}.",
        "Check that the machine runs and reaches the API server: talosctl -n {ip} logs kubelet.",
        "not reporting",
    ),
    "taint-in-machine-config": FaultText(
        "Talos itself sets the taint again: {detail}.",
        "Remove node.cloudprovider.kubernetes.io/uninitialized from machine.nodeTaints in its "
        "machine config.",
    ),
    # machine
    "talos-silent": FaultText(
        "Its machine does not answer the Talos API: {detail}.",
        "Check that it runs and that control planes reach its port 50000: talosctl -n {ip} version.",
    ),
    "talos-certificate": FaultText(
        "Talos rejects the client certificate of metadata: {detail}.",
        "Find out why Talos did not renew it: kubectl -n {namespace} describe "
        "serviceaccounts.talos.dev. Compare the clocks, too: talosctl -n {ip} time.",
    ),
    "talos-permission": FaultText(
        "Talos rejects the role of metadata's credential: {detail}.",
        "Allow it on control planes: machine.features.kubernetesTalosAPIAccess.allowedRoles: [os:reader] in "
        "their machine config.",
    ),
    "another-machine": FaultText(
        "Another machine answers at its address: {detail}.",
        "If its own machine is gone for good: kubectl delete node {node}. Otherwise give one of the "
        "two machines another address.",
    ),
    "talos-starting": FaultText(
        "Its Talos answers but does not have all facts yet: {detail}.",
        "Try again in a minute. If nothing changes: talosctl -n {ip} dmesg.",
    ),
    "talos-error": FaultText(
        "Its Talos answers with an error: {detail}.",
        "For details: talosctl -n {ip} dmesg. metadata retries by itself.",
    ),
    "no-talos-endpoint": FaultText(
        "There is no control plane to query its machine through: {detail}.",
        "Set TALOS_ENDPOINTS of metadata, or the endpoints in its talosconfig, to control planes.",
    ),
    "no-platform-metadata": FaultText(
        "Its cloud has not given Talos the metadata of the machine: {detail}.",
        "See the available metadata: talosctl -n {ip} get platformmetadata -o yaml; and the reason: "
        "talosctl -n {ip} dmesg.",
    ),
    "no-instance-metadata": FaultText(
        "No cloud account has supplied the metadata of its machine: {detail}.",
        "See what its machine names: talosctl -n {ip} get systeminformation -o yaml. Compare it with the "
        "server in the cloud, and see the log of cloud in namespace {namespace}.",
    ),
    # its server, by the accounts of its cloud
    "instance-gone": FaultText(
        "Cloud account {account} no longer has its server {server}. lifecycle has not deleted the Node yet: "
        "{detail}.",
        "Wait, if cloud-node-lifecycle is enabled and no dry run: lifecycle deletes the Node. At once: "
        "kubectl delete node {node}.",
        _WITHOUT_SERVER,
    ),
    "instance-gone-kept": FaultText(
        "Cloud account {account} no longer finds its server {server}, but lifecycle keeps the Node: "
        "{detail}.",
        "{release}",
        _WITHOUT_SERVER,
    ),
    "instance-never-seen": FaultText(
        "Cloud account {account} does not find its server {server} and has never seen it alive, so lifecycle "
        "keeps the Node for ever.",
        "Check that the account's credential belongs to the server's project. If the cloud's console does "
        "not show the server either: kubectl delete node {node}.",
        _WITHOUT_SERVER,
    ),
    "instance-shut-down": FaultText(
        "Its server {server} is shut down, as cloud account {account} reports.",
        "Start the server in the cloud. The Node remains while the server exists.",
        "shut down",
    ),
    "instance-unknown": FaultText(
        "Cloud account {account} cannot tell whether its server {server} exists, so lifecycle keeps the "
        "Node: {detail}.",
        "For details: kubectl -n {namespace} logs -l app.kubernetes.io/component=cloud-{account} --tail=50. "
        "If the cloud's console does not show the server: kubectl delete node {node}.",
        "of unknown existence in its cloud",
    ),
    # --cloud-config file
    "rule-fails": FaultText(
        "A rule of --cloud-config should set its providerID but fails: {detail}.",
        "Correct the rule; to see its result: talos-ccm render FILE --from-cluster {node}.",
    ),
    "no-native-provider-id": FaultText(
        "--cloud-config requires native providerIDs, but none is available: {detail}.",
        "Set one with a rule (platformMetadata.ProviderID), or add talos to ownership.providerIDSchemes.",
    ),
    "provider-id-of-another": FaultText(
        "Its machine would get the providerID of another Node: {detail}.",
        "See what gives it: talos-ccm render FILE --from-cluster {node}. Correct the rule or metadata, or "
        "delete the other Node if its machine no longer exists.",
    ),
    "other-nodes-unknown": FaultText(
        "Its providerID may belong to another Node, which the labeler cannot read: {detail}.",
        "Let an upgrade of the services finish. See whether another Node has the providerID: kubectl get "
        "nodes -o custom-columns=:metadata.name,:spec.providerID.",
    ),
    "cloud-config-refused": FaultText(
        "The --cloud-config file is invalid and has no effect: {detail}.",
        "List the mistakes: talos-ccm config check FILE. Correct config and transformations in the chart's "
        "values, then upgrade.",
        "not updated to the current rules",
    ),
    # ownership
    "of-another": FaultText(
        "The labeler does not manage it: {detail}.",
        "Another controller manages it. If this controller should, correct ownership in --cloud-config.",
        _FOREIGN,
    ),
    "of-another-controller": FaultText(
        "The labeler does not manage it: {detail}.",
        "If another controller has set it, keep it that way, or let this controller take over: stop the "
        "other one, then kubectl delete node {node} and talosctl -n {ip} service kubelet restart.",
        _FOREIGN,
    ),
    "owner-unknown": FaultText(
        "The labeler does not manage it until its machine answers: {detail}.",
        "Check that control planes reach its port 50000: talosctl -n {ip} version. If another "
        "controller manages it, exclude it by ownership in --cloud-config.",
        _FOREIGN,
    ),
    "provider-id": FaultText(
        "Its providerID differs from that of its machine: {detail}.",
        "A providerID is immutable: drain the Node, kubectl delete node {node}, talosctl -n {ip} "
        "service kubelet restart",
        "registered with a different providerID",
    ),
    "being-deleted": FaultText(
        "It is being deleted, so the labeler writes nothing: {detail}.",
        "See which finalizers block the deletion: kubectl get node {node} -o "
        "jsonpath={{.metadata.finalizers}}.",
        "being deleted",
    ),
    # services
    "no-leader": FaultText(
        "No watcher leads, so no Node is processed: the Lease {detail}.",
        _LOGS,
        service="watcher",
    ),
    "nats-silent": FaultText(
        "NATS does not answer, so no service receives events: {detail}.",
        "The log gives the reason: kubectl -n {namespace} logs --tail=50 --all-containers -l "
        "app.kubernetes.io/component={service}.",
        service="nats",
    ),
    "no-stream": FaultText(
        "NATS has no stream TALOSCCM, so no service receives events.",
        _LOGS,
        service="watcher",
    ),
    "stream-full": FaultText(
        "The stream in NATS is full: {detail}.",
        "Give NATS more storage: nats.storeMebibytes of the chart.",
    ),
    "watcher-silent": FaultText(
        "The watcher has not published it: {detail}.",
        _LOGS,
        service="watcher",
    ),
    "metadata-silent": FaultText(
        "metadata has published nothing about its machine: {detail}.",
        _LOGS,
        service="metadata",
    ),
    "labeler-silent": FaultText(
        "Its machine has answered, but the labeler has not written the Node: {detail}.",
        _LOGS,
        service="labeler",
    ),
    "write-refused": FaultText(
        "Kubernetes rejects the labeler's writes: {detail}.",
        "Forbidden: restore the permissions with helm upgrade. A webhook: allow the labeler's "
        "ServiceAccount. The labeler retries by itself.",
    ),
    "defect": FaultText(
        "The labeler failed because of a bug: {detail}.",
        "Please report it with the output of kubectl -n {namespace} logs -l "
        "app.kubernetes.io/component=labeler.",
    ),
    # serving certificate
    "certificate-denied": FaultText(
        "The serving certificate {csr} is denied. kubectl logs and exec fail on the Node once it "
        "has no older certificate: {detail}.",
        "See what to correct: talos-ccm explain csr {csr}. Then talosctl -n {ip} service kubelet restart.",
        _WITHOUT_CERTIFICATE,
    ),
    "certificate-waits": FaultText(
        "The serving certificate {csr} is not approved yet. kubectl logs and exec fail on the Node "
        "once it has no older certificate: {detail}.",
        "See what csr waits for: talos-ccm explain csr {csr}.",
        _WITHOUT_CERTIFICATE,
    ),
    "certificate-not-signed": FaultText(
        "The serving certificate {csr} is approved but not signed. kubectl logs and exec fail on "
        "the Node once it has no older certificate{detail}.",
        "kube-controller-manager signs: check that its controller csrsigning runs, with "
        "--cluster-signing-cert-file.",
        _WITHOUT_CERTIFICATE,
    ),
    # pod CIDRs
    "no-pod-cidr": FaultText(
        "It has no pod CIDR, so its pods get no addresses: {detail}.",
        "Delete Nodes whose machines are gone, or extend --cluster-cidr of ipam (pools: talos-ccm "
        "status ipam), or of kube-controller-manager where ipam does not run.",
        WITHOUT_POD_CIDR,
    ),
    # routes of its cloud
    "no-route": FaultText(
        "Its cloud routes no traffic to its pods: {detail}.",
        "Correct this at the cloud: attach the server to the network, delete a route that is in the way, or "
        "have the limit raised. The account tries again within five minutes.",
        "without a route to its pods",
    ),
    # caller
    "cause-unknown": FaultText(
        "The cause is unknown here: {detail}.",
        "Allow this command to exec in the watcher's pod, or set --talosconfig (role os:reader).",
    ),
}

# By the labeler's condition reason on the Node, for faults that are not faults of the machine.
FAULT_BY_BLOCK_REASON: Final[Mapping[str, str]] = {
    "WaitingForPlatformMetadata": "no-platform-metadata",
    "WaitingForInstanceMetadata": "no-instance-metadata",
    "ProviderIDRuleFailed": "rule-fails",
    "NativeProviderIDMissing": "no-native-provider-id",
    "ProviderIDOfAnotherNode": "provider-id-of-another",
    "WaitingForOtherNodes": "other-nodes-unknown",
    "TaintSetByMachineConfig": "taint-in-machine-config",
    "NoFactsYet": "metadata-silent",
    "NodeIPOfAnotherMachine": "node-ip-of-another",
    "NodeIPNotOnMachine": "node-ip-not-on-machine",
    "NodeWriteFailed": "write-refused",
    "DefectInTalosCCM": "defect",
}


def fill_fault_text(fault: str, *, is_initialized: bool, release: str = "", **given: str) -> FaultText:
    """Return the texts of a fault with these values of its placeholders.

    `release` may contain placeholders, too.
    """
    words = FAULT_TEXTS[fault]
    given["service"] = words.service
    return FaultText(
        cause=words.cause.format(**given).replace("?.", "?"),  # the detail may end with a question
        fix=words.fix.replace("{release}", release).format(**given),
        what=words.what or (_UNCONFIRMED if is_initialized else UNINITIALIZED),
        service=words.service,
    )
