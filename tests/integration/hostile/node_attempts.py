"""What a hostile kubelet registers, writes and deletes at the API server, with its node's identity."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION, FIELD_OWNERSHIP_DIGEST_LABEL
from libs.common.contract.protected_annotation import compute_digest
from libs.testbed.kubelet_node import PROVIDED_NODE_IP
from libs.testbed.kubelets import STRATEGIC, RequestRejected
from services.labeler.core.plan.ownership_record import ManagedFields, encode_managed_fields
from tests.integration.csr_cluster import until_said
from tests.integration.hostile.attacked_cluster import NODES, VICTIM, VICTIM_IP, VICTIM_UUID
from tests.integration.hostile.attacker import Attacker
from tests.integration.hostile.attempts import Attempt

REJECTED: Final = "kube-apiserver rejects the write"
BLOCKED: Final = "only its own Node stays uninitialized, with a condition that gives the reason"
CONTROL_PLANE_LABEL: Final = "node-role.kubernetes.io/control-plane"
FORGED = encode_managed_fields(ManagedFields(labels={"example.com/guard": "on"}))


def announces(value: str, reason: str = "ProvidedNodeIPInvalid") -> Callable[[Attacker], Awaitable[None]]:
    """The kubelet registers with this provided-node-ip, which blocks its Node for that reason."""

    async def carry_out(attacker: Attacker) -> None:
        await attacker.join(provided_node_ip=value)
        await attacker.cluster.wait_until_blocked(attacker.name, reason)

    return carry_out


def cannot(method: str, path: str, body: Any = None) -> Callable[[Attacker], Awaitable[None]]:
    """A request about the Node of another, which is forbidden."""

    async def carry_out(attacker: Attacker) -> None:
        await attacker.join()
        assert await attacker.request(method, path, body) == 403
        await attacker.cluster.wait_until_initialized(attacker.name)

    return carry_out


async def register_another(attacker: Attacker) -> None:
    await attacker.join()
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{attacker.name}-second"}}
    answer = await attacker.cluster.kubelets.request("POST", NODES, as_node=attacker.name, body=body)
    assert answer.status == 403


async def register_as_control_plane(attacker: Attacker) -> None:
    with pytest.raises(RequestRejected, match="not allowed to set the following labels"):
        await attacker.join(labels={CONTROL_PLANE_LABEL: ""})


async def become_control_plane(attacker: Attacker) -> None:
    await attacker.join()
    assert await attacker.write({"metadata": {"labels": {CONTROL_PLANE_LABEL: ""}}}) == 403


async def remove_taint(attacker: Attacker) -> None:
    await attacker.join(provided_node_ip="127.0.0.1")
    assert await attacker.write({"spec": {"taints": []}}) in {403, 422}
    await attacker.cluster.wait_until_blocked(attacker.name, "ProvidedNodeIPInvalid")


async def take_addresses(attacker: Attacker) -> None:
    """The labeler replaces what the kubelet wrote."""
    await attacker.join()
    await attacker.cluster.wait_until_initialized(attacker.name)
    claimed = [{"type": "InternalIP", "address": VICTIM_IP}, {"type": "Hostname", "address": VICTIM}]
    assert await attacker.write({"status": {"addresses": claimed}}, "/status") == 200
    await attacker.cluster.wait_for_node(
        attacker.name,
        lambda node: VICTIM_IP not in {each["address"] for each in node["status"]["addresses"]},
        "has its own addresses again",
    )


async def announce_second_address(attacker: Attacker) -> None:
    """Its second node IP is of another family and not on its machine."""
    await attacker.join(provided_node_ip=f"{attacker.ip},fd00:99::1")
    node = await attacker.cluster.wait_until_initialized(attacker.name)
    assert "fd00:99::1" not in {each["address"] for each in node["status"]["addresses"]}
    assert "fd00:99::1" in await attacker.cluster.wait_for_event(attacker.name, "NodeIPNotUsed")


async def flap_node_ip(attacker: Attacker) -> None:
    await attacker.join()
    for number in range(60):
        announced = {PROVIDED_NODE_IP: f"10.229.200.{number}"}
        assert await attacker.write({"metadata": {"annotations": announced}}) == 200
    assert await attacker.write({"metadata": {"annotations": {PROVIDED_NODE_IP: attacker.ip}}}) == 200
    await attacker.cluster.wait_until_initialized(attacker.name)


async def flap_uid(attacker: Attacker) -> None:
    await attacker.cluster.cluster.put_machines(attacker.machine)
    await attacker.register()
    assert await attacker.request("DELETE", attacker.path) == 403
    for _ in range(8):
        await attacker.cluster.kubelets.delete_node(attacker.name)
        await attacker.register()
    await attacker.cluster.wait_until_initialized(attacker.name)


async def take_pod_cidr(attacker: Attacker) -> None:
    taken = (await attacker.cluster.get_node(VICTIM))["spec"]["podCIDRs"]
    await attacker.register_with_spec({"podCIDR": taken[0], "podCIDRs": taken})
    assert taken[0] in await attacker.cluster.wait_for_event(attacker.name, "CIDRConflict")


async def take_provider_id(attacker: Attacker) -> None:
    taken = (await attacker.cluster.get_node(VICTIM))["spec"]["providerID"]
    await attacker.register_with_spec({"providerID": taken})
    mismatch = await attacker.cluster.wait_for_event(attacker.name, "ProviderIDMismatch")
    assert taken in mismatch


async def take_uuid(attacker: Attacker) -> None:
    await attacker.join(system_uuid=VICTIM_UUID)
    await attacker.cluster.wait_until_initialized(attacker.name)


async def forge_record(attacker: Attacker) -> None:
    """A forged record must not make the labeler remove an operator's key."""
    await attacker.join()
    await attacker.cluster.wait_until_initialized(attacker.name)
    await attacker.cluster.change_node(attacker.name, {"metadata": {"labels": {"example.com/guard": "on"}}})
    digest = {FIELD_OWNERSHIP_DIGEST_LABEL: compute_digest(FORGED)}
    assert await attacker.write({"metadata": {"labels": digest}}) == 403
    assert await attacker.write({"metadata": {"annotations": {FIELD_OWNERSHIP_ANNOTATION: FORGED}}}) == 200
    await attacker.cluster.wait_for_event(attacker.name, "OwnedRecordUnreadable")
    node = await attacker.cluster.get_node(attacker.name)
    assert node["metadata"]["labels"]["example.com/guard"] == "on"


async def write_many_addresses(attacker: Attacker) -> None:
    await attacker.join()
    many = [{"type": "InternalIP", "address": f"10.182.{n // 250}.{n % 250 + 1}"} for n in range(10_000)]
    patch = {"status": {"addresses": many}}
    assert await attacker.request("PATCH", f"{attacker.path}/status", patch, STRATEGIC) == 200
    await attacker.cluster.wait_for_node(
        attacker.name, lambda node: len(node["status"]["addresses"]) < 10, "has its own addresses again"
    )


async def announce_long_text(attacker: Attacker) -> None:
    """The watcher publishes no annotation of that size."""
    await attacker.join(provided_node_ip="10.0.0.1," * 11_000)
    await attacker.cluster.wait_for_decision("labeler", "node", attacker.name, "not-ours")


async def write_huge_annotations(attacker: Attacker) -> None:
    await attacker.join(annotations={"example.com/huge": "x" * 250_000})
    await attacker.cluster.wait_until_initialized(attacker.name)


async def write_many_labels(attacker: Attacker) -> None:
    await attacker.join(labels={f"example.com/l{number}": "x" * 60 for number in range(8_000)})
    await until_said(attacker.cluster.services, "watcher", attacker.name, "the limit is")


_VICTIM_PATH = f"{NODES}/{VICTIM}"
NODE_ATTEMPTS: tuple[Attempt[Attacker], ...] = (
    Attempt("registers a Node under another name", REJECTED, register_another),
    Attempt(
        "labels another Node", REJECTED, cannot("PATCH", _VICTIM_PATH, {"metadata": {"labels": {"a": "b"}}})
    ),
    Attempt(
        "writes another Node's status",
        REJECTED,
        cannot("PATCH", f"{_VICTIM_PATH}/status", {"status": {"addresses": []}}),
    ),
    Attempt("deletes another Node", REJECTED, cannot("DELETE", _VICTIM_PATH)),
    Attempt("registers with the label of a control plane", REJECTED, register_as_control_plane),
    Attempt("gives its Node the label of a control plane", REJECTED, become_control_plane),
    Attempt("removes the uninitialized taint itself", REJECTED, remove_taint),
    Attempt(
        "announces another node's address as its own", BLOCKED, announces(VICTIM_IP, "WrongMachineAnswers")
    ),
    Attempt("announces a loopback address", f"metadata does not dial it; {BLOCKED}", announces("127.0.0.1")),
    Attempt(
        "announces the link-local address of a cloud's metadata",
        f"metadata does not dial it; {BLOCKED}",
        announces("169.254.169.254"),
    ),
    Attempt(
        "announces a host name",
        f"metadata does not resolve it; {BLOCKED}",
        announces("vault.internal.example"),
    ),
    Attempt(
        "announces a text of 100 kB", "its own Node counts as one of another controller", announce_long_text
    ),
    Attempt(
        "announces a text with line breaks and escape sequences",
        BLOCKED,
        announces("10.0.0.1\nlevel=error\x1b[2J"),
    ),
    Attempt("announces an address of a Service", BLOCKED, announces("10.96.0.1", "TalosUnreachable")),
    Attempt(
        "announces a second address that its machine does not have",
        "the labeler leaves the address out",
        announce_second_address,
    ),
    Attempt("announces sixty addresses one after the other", "only its own Node waits for it", flap_node_ip),
    Attempt(
        "registers its Node again with eight other uids",
        "kube-apiserver rejects its deletion; after an administrator's, the last Node is initialized",
        flap_uid,
    ),
    Attempt("writes another node's addresses to its own status", "the labeler replaces them", take_addresses),
    Attempt("writes 10,000 addresses to its own status", "the labeler replaces them", write_many_addresses),
    Attempt("writes annotations of 250 kB", "its Node is initialized like any other", write_huge_annotations),
    Attempt("registers with labels of 500 kB", "the watcher skips this Node and logs it", write_many_labels),
    Attempt(
        "registers with another node's pod CIDR",
        "ipam reports it on that Node, and the CIDR stays the other node's",
        take_pod_cidr,
    ),
    Attempt(
        "registers with another node's providerID", "the labeler reports it on that Node", take_provider_id
    ),
    Attempt(
        "reports another machine's systemUUID",
        "a Node is verified by its name first; both stay as they are",
        take_uuid,
    ),
    Attempt(
        "forges the record of keys that the labeler may remove",
        "kube-apiserver rejects the digest, so the labeler ignores the record",
        forge_record,
    ),
)
