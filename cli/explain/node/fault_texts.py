"""The problems that keep a Node unusable: a sentence for the cause, a line for the fix. Pure.

docs/stuck-nodes.md contains the same texts.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from libs.common.contract.machine import FaultKind


class FaultText(msgspec.Struct, frozen=True):
    """The cause and the fix of one fault.

    Placeholders: {node} is its name, {ip} its address, {said} the reported detail, {namespace} that of the
    chart's pods. {csr} is the kubelet's newest request for a certificate.
    """

    cause: str
    fix: str


_EXTERNAL: Final = (
    "Set cluster.externalCloudProvider.enabled: true in its machine config (talosctl -n {ip} edit "
    "machineconfig): its kubelet then restarts with --cloud-provider=external."
)
_LOGS: Final = "kubectl -n {{namespace}} logs -l app.kubernetes.io/component={0} --tail=50 says why."

FAULT_TEXTS: Final[Mapping[str, FaultText]] = {
    # kubelet
    "kubelet-not-external": FaultText(
        "Its kubelet runs without --cloud-provider=external: it registered without the taint and without "
        "annotation alpha.kubernetes.io/provided-node-ip, so nobody initialises it.",
        _EXTERNAL,
    ),
    "no-node-ip": FaultText(
        "It has the taint, and no annotation alpha.kubernetes.io/provided-node-ip: its kubelet runs without "
        "--cloud-provider=external now, or without --node-ip, and nobody knows which machine to ask.",
        _EXTERNAL,
    ),
    "bad-node-ip": FaultText(
        "The address that its kubelet gives cannot be asked: {said}.",
        "Correct machine.kubelet.nodeIP.validSubnets in its machine config (--node-ip of the kubelet).",
    ),
    "node-ip-of-another": FaultText(
        "Its kubelet announces an address of another machine: {said}.",
        "Correct machine.kubelet.nodeIP.validSubnets in its machine config (--node-ip of the kubelet).",
    ),
    "node-ip-not-on-machine": FaultText(
        "Its machine does not have the address that the providerID would contain: {said}.",
        "Correct its link, or machine.kubelet.nodeIP.validSubnets in its machine config (--node-ip of the "
        "kubelet).",
    ),
    "not-ready": FaultText(
        "Its kubelet is not ready: {said}.",
        "talosctl -n {ip} service kubelet, and talosctl -n {ip} logs kubelet, say more.",
    ),
    "kubelet-silent": FaultText(
        "Its kubelet has stopped reporting: {said}.",
        "See that the machine is on and reaches the API server: talosctl -n {ip} logs kubelet.",
    ),
    "taint-in-machine-config": FaultText(
        "Talos puts the taint back itself: {said}.",
        "Take node.cloudprovider.kubernetes.io/uninitialized out of machine.nodeTaints in machine config.",
    ),
    # machine
    "talos-silent": FaultText(
        "Its machine does not answer the Talos API: {said}.",
        "See that it is on and that control planes reach its port 50000: talosctl -n {ip} version.",
    ),
    "talos-certificate": FaultText(
        "Talos does not take the certificate that it is asked with: {said}.",
        "kubectl -n {namespace} describe serviceaccounts.talos.dev says why Talos did not renew it; compare "
        "the clocks, too: talosctl -n {ip} time.",
    ),
    "talos-permission": FaultText(
        "Talos refuses the role that it is asked with: {said}.",
        "Allow it on control planes: machine.features.kubernetesTalosAPIAccess.allowedRoles: [os:reader] in "
        "their machine config.",
    ),
    "another-machine": FaultText(
        "Another machine answers at its address: {said}.",
        "If its own machine is gone for good: kubectl delete node {node}. If it is not, one of the two needs "
        "another address.",
    ),
    "talos-starting": FaultText(
        "Its Talos answers, and does not have all yet: {said}.",
        "Look again in a minute. If it stays so: talosctl -n {ip} dmesg.",
    ),
    "talos-error": FaultText(
        "Its Talos answers with an error: {said}.",
        "talosctl -n {ip} dmesg says more; it is asked again by itself.",
    ),
    "no-talos-endpoint": FaultText(
        "There is no control plane to ask its machine by: {said}.",
        "Name control planes in TALOS_ENDPOINTS of metadata, or in the endpoints of its talosconfig.",
    ),
    "no-platform-metadata": FaultText(
        "Its cloud has not told Talos what the machine is: {said}.",
        "talosctl -n {ip} get platformmetadata -o yaml shows what there is, talosctl -n {ip} dmesg why.",
    ),
    # --cloud-config file
    "rule-fails": FaultText(
        "A rule of --cloud-config should give its providerID, and fails: {said}.",
        "Correct the rule: talos-ccm render FILE --from-cluster {node} shows what it gives.",
    ),
    "no-native-provider-id": FaultText(
        "--cloud-config says that providerIDs are native, and nobody gives one: {said}.",
        "Give one by a rule (platformMetadata.ProviderID), or name talos in ownership.providerIDSchemes.",
    ),
    "cloud-config-refused": FaultText(
        "The --cloud-config file has mistakes and is not obeyed: {said}.",
        "talos-ccm config check FILE names each; kubectl -n {namespace} edit configmap mends it.",
    ),
    # ownership
    "of-another": FaultText(
        "The labeler leaves it alone: {said}.",
        "Its own controller looks after it. If it should be ours, correct ownership in --cloud-config.",
    ),
    "of-another-controller": FaultText(
        "The labeler leaves it alone: {said}.",
        "Let one controller have it: end the other one, then kubectl delete node {node} and talosctl -n {ip} "
        "service kubelet restart; or leave it to that one.",
    ),
    "of-whom-is-not-known": FaultText(
        "The labeler leaves it alone until its machine answers: {said}.",
        "See that control planes reach its port 50000: talosctl -n {ip} version. If it is another "
        "controller's, say so in ownership of --cloud-config.",
    ),
    "provider-id": FaultText(
        "Its providerID is not its machine's: {said}.",
        "It never changes: drain it, kubectl delete node {node}, talosctl -n {ip} service kubelet restart",
    ),
    "being-deleted": FaultText(
        "It is being deleted, so nothing is written on it: {said}.",
        "kubectl get node {node} -o jsonpath={{.metadata.finalizers}} says who holds it.",
    ),
    # services
    "no-leader": FaultText(
        "No watcher leads, so nothing moves: the Lease {said}.",
        _LOGS.format("watcher"),
    ),
    "nats-silent": FaultText(
        "NATS does not answer, so no service hears of it: {said}.",
        "kubectl -n {namespace} logs --tail=50 --all-containers -l app.kubernetes.io/component=nats says "
        "why.",
    ),
    "no-stream": FaultText(
        "NATS has no stream TALOSCCM, so no service hears of it.",
        _LOGS.format("watcher"),
    ),
    "stream-full": FaultText(
        "The stream in NATS is full: {said}.",
        "Give NATS more room: nats.storeMebibytes of the chart.",
    ),
    "watcher-silent": FaultText(
        "The watcher has said nothing of it: {said}.",
        _LOGS.format("watcher"),
    ),
    "metadata-silent": FaultText(
        "metadata has said nothing of its machine: {said}.",
        _LOGS.format("metadata"),
    ),
    "labeler-silent": FaultText(
        "Its machine has answered, and the labeler has not carried it out: {said}.",
        _LOGS.format("labeler"),
    ),
    "write-refused": FaultText(
        "Kubernetes does not take what the labeler writes on it: {said}.",
        "Forbidden: helm upgrade grants the rights anew. A webhook: let the labeler's account pass. It is "
        "tried again by itself.",
    ),
    "defect": FaultText(
        "The labeler has a defect: {said}.",
        "Please report it, with kubectl -n {namespace} logs -l app.kubernetes.io/component=labeler.",
    ),
    # serving certificate
    "certificate-denied": FaultText(
        "The serving certificate {csr} is denied, so logs and exec fail on it once it has no "
        "older one: {said}.",
        "talos-ccm explain csr {csr} says what to correct; then talosctl -n {ip} service kubelet restart.",
    ),
    "certificate-waits": FaultText(
        "The serving certificate {csr} is not approved yet, so logs and exec fail on it once it has no "
        "older one: {said}.",
        "talos-ccm explain csr {csr} says what ends the wait.",
    ),
    "certificate-not-signed": FaultText(
        "The serving certificate {csr} is approved and not signed, so logs and exec fail on it once it has "
        "no older one{said}.",
        "kube-controller-manager signs: see that its controller csrsigning runs, with "
        "--cluster-signing-cert-file.",
    ),
    # pod CIDRs
    "no-pod-cidr": FaultText(
        "It has no pod CIDR, so no pod gets an address on it: {said}.",
        "Delete Nodes that are gone, or widen --cluster-cidr of who gives them: of ipam (talos-ccm status "
        "ipam shows its pools), or of kube-controller-manager where ipam does not run.",
    ),
    # caller
    "not-told": FaultText(
        "From here it cannot be told: {said}.",
        "Let this command exec in the watcher's pod, or give it --talosconfig (role os:reader).",
    ),
}

FAULT_BY_KIND: Final[Mapping[FaultKind, str]] = {
    "refused": "talos-silent",
    "timeout": "talos-silent",
    "certificate": "talos-certificate",
    "permission": "talos-permission",
    "wrong_machine": "another-machine",
    "not_found": "talos-starting",
    "invalid": "talos-error",
    "internal": "talos-error",
    "no_endpoint": "no-talos-endpoint",
    "bad_node_ip": "bad-node-ip",
}
# By the labeler's condition reason on the Node, for faults that are not faults of the machine.
FAULT_BY_BLOCK_REASON: Final[Mapping[str, str]] = {
    "WaitingForPlatformMetadata": "no-platform-metadata",
    "ProviderIDRuleFailed": "rule-fails",
    "NativeProviderIDMissing": "no-native-provider-id",
    "TaintSetByMachineConfig": "taint-in-machine-config",
    "NoFactsYet": "metadata-silent",
    "NodeIPOfAnotherMachine": "node-ip-of-another",
    "NodeIPNotOnMachine": "node-ip-not-on-machine",
    "NodeWriteFailed": "write-refused",
    "DefectInTalosCCM": "defect",
}
