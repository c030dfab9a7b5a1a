"""A writer on the bus gets no approval of a request that Kubernetes does not have."""

import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from libs.common.bus.protocol import Bus
from libs.common.contract import subjects
from libs.common.contract.events import Leading, NodeEnriched
from libs.common.contract.signing_request import KUBELET_SERVING, SigningRequest, SigningRequestStatus
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import NODE_GROUPS, KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.signing_requests import CSRS, SERVING_USAGES, make_request_pem
from tests.builders import make_csr_enriched, make_csr_observed, make_request
from tests.bus_actors import wait_until
from tests.integration.conftest import ConnectBus, StartServices, operating
from tests.integration.csr_cluster import (
    all_still_ready,
    all_users_may_request,
    names_in,
    pids_of,
    state_of,
    until_said,
)

OF_A_NAME = (
    subjects.OBSERVED_NODE,
    subjects.ENRICHED_NODE,
    subjects.OBSERVED_CSR,
    subjects.ENRICHED_CSR,
    f"{subjects.DECIDED}.csr.csr",
    f"{subjects.FLOW}.none",
)
SUBJECTS = (
    *(f"{subject}.thief" for subject in OF_A_NAME),
    subjects.SNAPSHOT,
    subjects.LEADING,
    subjects.NETWORKS,
)
NOT_YET = "10.224.0.99"  # an address that no machine has
USER = "system:node:thief"


@pytest.fixture
async def thief(kubelets: KubeletFleet, machines: MachineFleet) -> AsyncIterator[SimKubelet]:
    """A node that joined; beside it is a machine whose kubelet has not."""
    running = [make_machine("thief", "10.224.0.1"), make_machine("honest", "10.224.0.2")]
    await machines.put_machines(*running)
    kubelet = SimKubelet.of_machine(running[0])
    await kubelets.join(kubelet)
    yield kubelet
    for machine in running:
        await kubelets.delete_node(machine.name)
    await machines.delete_machines(*(machine.id for machine in running))
    for item in (await kubelets.request("GET", CSRS)).body["items"]:
        await kubelets.request("DELETE", f"{CSRS}/{item['metadata']['name']}")


async def held(kubelets: KubeletFleet, name: str) -> SigningRequest:
    return msgspec.convert((await kubelets.request("GET", f"{CSRS}/{name}")).body, SigningRequest)


def pem_for(*ips: str) -> bytes:
    return make_request_pem(common_name=USER, dns=["thief"], ips=ips)


WHAT_IS_HELD: dict[str, dict[str, Any]] = {
    "asks for more": {"pem": pem_for("10.224.0.1", NOT_YET)},
    "is of no node": {"user": "jane", "groups": ["system:authenticated"]},
    "is not in the group": {"groups": ["system:authenticated"]},
    "is for a client": {"usages": ["digital signature", "client auth"], "signer": "example.com/any"},
}


async def told_as_honest(bus: Bus, request: SigningRequest, pem: bytes) -> None:
    """The watcher's and metadata's word of a request that a kubelet would file, in place of this one."""
    leading, enriched = (
        await bus.get_last(subjects.LEADING),
        await bus.get_last(f"{subjects.ENRICHED_NODE}.thief"),
    )
    assert leading is not None
    assert isinstance(leading.event, Leading)
    assert enriched is not None
    assert isinstance(enriched.event, NodeEnriched)
    spec = msgspec.structs.replace(
        request.spec,
        request=pem,
        username=USER,
        groups=NODE_GROUPS,
        usages=SERVING_USAGES,
        signer_name=KUBELET_SERVING,
    )
    lie = msgspec.structs.replace(request, spec=spec, status=SigningRequestStatus())
    place = await bus.publish(make_csr_observed(lie, stream_id=bus.stream_id, epoch=leading.event.epoch))
    await bus.publish(
        make_csr_enriched(
            lie,
            stream_id=bus.stream_id,
            observed_sequence=place,
            node_uid=enriched.event.node.uid,
            facts=enriched.event.facts,
        )
    )


async def test_forged_words_get_nothing_approved_that_kubernetes_does_not_hold(
    start_services: StartServices,
    connect_bus: ConnectBus,
    control_plane: ControlPlane,
    kubelets: KubeletFleet,
    thief: SimKubelet,
):
    services = await start_services()
    pids, bus = pids_of(services), await connect_bus("metadata")
    await wait_until(lambda: _is_enriched(bus), "the thief's machine is known")
    since = control_plane.audit_mark()
    names = []
    async with all_users_may_request(kubelets):
        for what in WHAT_IS_HELD.values():
            own = pem_for(*thief.ips)
            asked = {"pem": own, "user": USER, **what}
            names.append(await kubelets.file_request(**asked))
            await told_as_honest(bus, await held(kubelets, names[-1]), own)
            await until_said(services, "csr", names[-1], "fence failed: the request in Kubernetes differs")
    soon = datetime.now(UTC) + timedelta(minutes=1)  # newer than all that the thief has asked for
    nowhere = make_request("csr-unknown", node="thief", created=soon, resource_version="10000000")
    await told_as_honest(bus, nowhere, pem_for(*thief.ips))
    await until_said(services, "csr", nowhere.name, "not found")
    for name in names:
        outcome = await state_of(kubelets, name)
        assert not outcome.conditions
        assert not outcome.certificate
    refused = [
        request.succeeded
        for request in control_plane.audit_counts(since)
        if request.user == "talos-ccm-csr" and request.resource == "certificatesigningrequests/approval"
    ]
    assert refused == [False]
    await all_still_ready(services, pids)


async def _is_enriched(bus: Bus) -> bool:
    return await bus.get_last(f"{subjects.ENRICHED_NODE}.thief") is not None


async def test_garbage_on_every_subject_ends_no_process_and_keeps_no_node_from_its_certificate(
    start_services: StartServices,
    kubelets: KubeletFleet,
    machines: MachineFleet,
    nats_server: NatsServer,
    thief: SimKubelet,
):
    services = await start_services(own_flags={"watcher": ["--node-status-update-frequency=3s"]})
    pids, rng = pids_of(services), random.Random(6)
    pending = await kubelets.request_certificate(thief, ips=[*thief.ips, NOT_YET])
    await until_said(services, "csr", pending, "is not on the machine")
    lengths = (0, 1, 7, 300, 5000, 70_000)
    garbage = [*map(rng.randbytes, lengths), b"{}", b"null", b"[" * 50_000, b'{"event":"CsrEnriched.v1"}']
    async with operating(nats_server) as operator:
        for subject in (
            *SUBJECTS,
            f"{subjects.ENRICHED_CSR}.{pending}",
            f"{subjects.OBSERVED_CSR}.{pending}",
        ):
            for payload in garbage:
                await operator.publish(subject, payload)
    await services.wait_until_ready()
    honest = SimKubelet.of_machine(machines.get_machine("honest"))
    await kubelets.join(honest)
    outcome = await kubelets.wait_for_outcome(await kubelets.request_certificate(honest))
    assert names_in(outcome) == (["honest"], list(honest.ips))
    assert not (await state_of(kubelets, pending)).conditions
    await all_still_ready(services, pids)

    # What these read is what the stream holds; what the watcher had said there comes with its resync.
    for name in ("csr", "metadata"):
        await services.children[name].kill()
        services.restart(name)
    await services.wait_until_ready()
    again = await kubelets.request_certificate(honest)
    assert (await kubelets.wait_for_outcome(again)).certificate
