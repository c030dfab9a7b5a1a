"""Advice for an operator, by the state of a request and the check that decided. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from cli.explain.request_explanation import RequestExplanation

# By the deciding check. {node} is the requesting node, {others} are the other Nodes to wait for.
_ENDS_A_WAIT: Final[Mapping[str, str]] = {
    "node": "It is decided as soon as Node {node} has registered. If it never does, its kubelet's log says "
    "why: talosctl logs kubelet.",
    "unreachable": "Let metadata reach the Talos API (port 50000) of {node}, by a control plane or at its "
    "own address; it is decided within seconds. (So it is seen from here; metadata may be better off.)",
    "asking": "It is decided when the machine has been asked, which takes seconds.",
    "machine": "The address that Node {node} names is another machine's: look at annotation "
    "alpha.kubernetes.io/provided-node-ip of the Node, and at the hostname of the machine there.",
    "names": "It is decided when the machine has that name. A name that it should not have: take it out of "
    "the kubelet's configuration, it then asks anew.",
    "addresses": "It is decided when the machine has that address. If it never will, the kubelet is told a "
    "wrong one: machine.kubelet.nodeIP in the machine config, --node-ip.",
    "former": "If {others} is gone for good, delete its Node; otherwise bring it back. Then it is decided.",
    "rivals": "Find out whose it is: {node} or {others}. Take it from the other machine, or delete its Node "
    "if that is gone. Then it is decided.",
    "networks": "Give csr --service-cluster-ip-range, as kube-apiserver has it, or let metadata reach a "
    "control plane through Talos: then csr knows which addresses are those of Services.",
    "endpoint": "It is in the certificate of an API server. A worker gets its node name and node IPs only: "
    "take it from {node}. A control plane gets more once its Node has the label "
    "node-role.kubernetes.io/control-plane. Nobody gets a virtual IP. If csr cannot read that "
    "certificate, its log and /readyz?verbose give the reason.",
    "no-talos": "Without Talos, name the networks of your nodes: --csr-allowed-networks=10.0.0.0/8 of csr.",
}
_AFTER_A_DENIAL: Final[Mapping[str, str]] = {
    "names": "If the machine should have that name, set it as its hostname in the machine config. If not, "
    "find out what on {node} asks for it.",
    "addresses": "No certificate of {node} may have that address. It is configured twice, or the kubelet is "
    "told a wrong one, or somebody has taken over {node}.",
    "endpoint": "The name is in the certificate of the API server. Give the machine of {node} another "
    "hostname. A Node gets only its own name.",
    "expiration": "The kubelet asks for it, or --csr-min-expiration and --csr-max-expiration are too narrow.",
}
_NO_KUBELET: Final = "No kubelet asks for this: find out what runs on {node} with the kubelet's identity."
_FOREIGN: Final = (
    "Whoever looks after Node {node} answers. If that is us: correct ownership in the --cloud-config file, "
    "or the labels of the Node; it is decided within seconds then."
)
_CLEANED: Final = "Kubernetes removes this one a day after it was filed."
_NOT_SIGNED: Final = (
    "It is approved and not signed yet. kube-controller-manager signs: is its controller csrsigning running, "
    "with --cluster-signing-cert-file (or --cluster-signing-kubelet-serving-cert-file)?"
)
_ASKS_ANEW: Final = (
    "A denial is final; the kubelet asks anew by itself, later each time. To make it ask now: talosctl "
    "service kubelet restart."
)
_STAYS_PENDING: Final = (
    "If it stays pending, csr does not run, or says why it waits: /readyz?verbose, and its log. A node of "
    "which 20 requests were answered in a row gets one answer a minute. After a start csr waits until "
    "metadata has reported on every machine (startup), and it decides by nothing that metadata has not "
    "published lately (age): look at metadata."
)


def suggest_actions(explanation: RequestExplanation) -> Iterator[str]:
    """Yield one text per possible action; none if nothing needs to be done."""
    match explanation:
        case RequestExplanation(verdict="ignore"):
            yield "Nothing here concerns it: whoever is responsible for that signer and user decides."
        case RequestExplanation(verdict="foreign", state="pending"):
            yield _FOREIGN.format(node=_get_node_name(explanation))
        case RequestExplanation(state="superseded"):
            yield f"Look at {explanation.superseded_by}: the kubelet waits for that one. {_CLEANED}"
        case RequestExplanation(state="approved"):
            yield from () if explanation.csr.is_issued else (_NOT_SIGNED,)
        case RequestExplanation(state="failed"):
            yield "The signer refuses it, which is final. The kubelet asks anew."
        case RequestExplanation(state="denied"):
            yield from _advise_denied(explanation)
        case _:
            yield from _advise_pending(explanation)


def _advise_pending(explanation: RequestExplanation) -> Iterator[str]:
    match explanation.verdict:
        case "deny":
            yield from _advise_denied(explanation)
        case "unknown":
            yield _advise_unknown(explanation)
        case "wait":
            yield _fill_text(_ENDS_A_WAIT.get(explanation.check, _STAYS_PENDING), explanation)
        case _:
            yield _STAYS_PENDING


def _advise_denied(explanation: RequestExplanation) -> Iterator[str]:
    if explanation.verdict == "deny":
        yield _fill_text(_AFTER_A_DENIAL.get(explanation.check, _NO_KUBELET), explanation)
    yield _ASKS_ANEW


def _advise_unknown(explanation: RequestExplanation) -> str:
    if explanation.check == "former":
        return ("The Events of the Node say what csr waits for: kubectl describe node ") + _get_node_name(
            explanation
        )
    if explanation.check == "networks":
        return "Give --service-cluster-ip-range as csr has it, or access to Talos with --talosconfig."
    if explanation.check == "endpoint":
        return (
            "Use a kubeconfig whose server is an API server itself, such as that of `talosctl kubeconfig`, "
            "not Omni, Teleport or a load balancer that ends TLS."
        )
    return (
        "Give access to Talos with --talosconfig (role os:reader; metadata uses one like it), or judge as "
        "where no machine is asked: --without-talos --csr-allowed-networks=NETWORK"
    )


def _fill_text(text: str, explanation: RequestExplanation) -> str:
    node = _get_node_name(explanation)
    waits = [check for check in explanation.checks if check.name == explanation.check]
    others = sorted({name for check in waits for name in check.nodes} - {node})
    return text.format(node=node, others=" or ".join(others[:3]) or "another")


def _get_node_name(explanation: RequestExplanation) -> str:
    return explanation.csr.signing_request.node_name
