"""Faults of machines and of the credentials and rights of the services."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from libs.common.contract.services import CSR, IPAM, LABELER, WATCHER
from libs.testbed.kubelets import JSON, RequestRejected
from libs.testbed.service_permissions import RBAC, get_user_name
from tests.chaos.fault import Action, Fault, FaultSite
from tests.chaos.persist import persist
from tests.chaos.workload import STEADY, make_impostor

_STOPPED, _IMPERSONATED, _PARTIAL = STEADY  # faults of different machines may occur together
_ROLES: Final = f"/apis/{RBAC}/v1/clusterroles"


async def _stop_machine(site: FaultSite) -> None:
    await site.fleet.silence(_STOPPED)


async def _start_machine(site: FaultSite) -> None:
    await site.fleet.start(site.workload.machines[_STOPPED])


async def _run_impostor(site: FaultSite) -> None:
    await site.fleet.run_unknown(make_impostor(site.workload.machines[_IMPERSONATED]))


async def _stop_impostor(site: FaultSite) -> None:
    machine = site.workload.machines[_IMPERSONATED]
    await site.fleet.stop_unknown(make_impostor(machine), machine.name)


def _set_machine_faults(faults: Mapping[str, Any]) -> tuple[Action, Action]:
    async def inject(site: FaultSite) -> None:
        await site.cluster.machines.set_faults(_PARTIAL, **faults)

    async def heal(site: FaultSite) -> None:
        await site.cluster.machines.set_faults(_PARTIAL)

    return inject, heal


async def _rotate_talos_certificates(site: FaultSite) -> None:
    """The CA is another one, and connections end: the client certificates of the processes are invalid."""
    machines = site.cluster.machines
    machines.pki.rotate()
    await machines.cut_endpoint(0)
    await machines.restore_endpoint(0)


async def _renew_talosconfigs(site: FaultSite) -> None:
    site.cluster.write_talosconfigs()


def _make_right_fault(user: str, right: str) -> Fault:
    """The ClusterRole of a user loses all rules, and gets them again."""
    path = f"{_ROLES}/{user}"
    kept: list[Any] = []

    async def exchange(site: FaultSite, rules: list[Any]) -> list[Any]:
        found = await site.cluster.kubelets.request("GET", path)
        if found.status != 200:
            raise RequestRejected(path, found)
        changed = found.body | {"rules": rules}
        answer = await site.cluster.kubelets.request("PUT", path, body=changed, content_type=JSON)
        if answer.status != 200:
            raise RequestRejected(path, answer)
        return list(found.body["rules"] or ())  # null once they are revoked

    async def revoke(site: FaultSite) -> None:
        async def send() -> None:
            removed = await exchange(site, [])
            kept[:] = removed or kept  # the answer to the first attempt may have been lost

        await persist(f"revoke the rights of {user}", send)

    async def restore(site: FaultSite) -> None:
        async def send() -> None:
            await exchange(site, kept)

        await persist(f"restore the rights of {user}", send)

    return Fault(name=f"{right}-revoked", target=f"rights-{user}", inject=revoke, heal=restore)


def _list_machine_faults() -> Iterator[Fault]:
    yield Fault(name="machine-stopped", target="machine-1", inject=_stop_machine, heal=_start_machine)
    yield Fault(name="wrong-machine-answers", target="machine-2", inject=_run_impostor, heal=_stop_impostor)
    for name, faults in (
        ("machine-hangs", {"hang": True}),
        ("machine-slow", {"delay_ms": 3000}),
        (
            "machine-without-addresses",
            {"not_found": ["NodeAddresses.net.talos.dev", "AddressStatuses.net.talos.dev"]},
        ),
        ("machine-rejects-role", {"permission_denied": True}),
    ):
        inject, heal = _set_machine_faults(faults)
        yield Fault(name=name, target="machine-3", inject=inject, heal=heal)
    yield Fault(
        name="talos-certificates-rotated",
        target="talos-certificates",
        inject=_rotate_talos_certificates,
        heal=_renew_talosconfigs,
    )
    for spec, right in (
        (WATCHER, "right-to-list-nodes"),
        (LABELER, "right-to-patch-nodes"),
        (CSR, "right-to-approve"),
        (IPAM, "right-to-allocate"),
    ):
        yield _make_right_fault(get_user_name(spec), right)


MACHINE_FAULTS: Final[Sequence[Fault]] = tuple(_list_machine_faults())
