"""Certificate requests of a hostile kubelet; tests/csr_cases.py has two hundred more."""

import asyncio

from libs.testbed.kubelets import JSON_PATCH
from libs.testbed.signing_requests import APPROVED, CSRS
from tests.bus_actors import wait_until
from tests.integration.csr_cluster import state_of
from tests.integration.hostile.attacked_cluster import VICTIM, VICTIM_IP, VIRTUAL_IP
from tests.integration.hostile.attacker import BY_NAME, Attacker
from tests.integration.hostile.attempts import Attempt

DENIED = "csr denies the request"
WAITS = "the request stays pending"
REJECTED = "kube-apiserver rejects the request"
IGNORED = "csr ignores the request: it is for another approver"
FLOOD = 40  # twice as many as csr answers in a row

# What the attacker tries, by the name of the case in tests/csr_cases.py.
OF_CASES = {
    "db-1 by common name": "a request with the common name of another node",
    "an admin by common name": "a request with the common name of an administrator",
    "nodes and masters": "a request with the organization `system:masters`",
    "for a server and a client": "a request for a client certificate as well",
    "for a client of the API server": "a request to the signer of API clients",
    "of another signer": "a request to a signer of another project",
    "kubernetes.default.svc": "a request for the name `kubernetes.default.svc`",
    "the host name of the API server": "a request for the host name of the API server",
    "a Service in the cluster's domain": "a request for the name of a Service in the domain of the cluster",
    "a wildcard": "a request for a wildcard name",
    "localhost": "a request for `localhost`",
    "Cyrillic that looks the same": "a request for a name in Cyrillic letters that look the same",
    "a NUL": "a request for a name with a NUL character",
    "the address of a Service": "a request for the address of a Service",
    "loopback": "a request for a loopback address",
    "link-local": "a request for a link-local address",
    "IPv4 inside IPv6": "a request for an IPv4 address written as IPv6",
    "a URI": "a request for a URI",
    "101 names": "a request for 101 names",
    "more than 32 kB": "a request of more than 32 KiB",
    "RSA 1024": "a request with an RSA key of 1024 bits",
    "signed by another key": "a request that another key signed",
    "two lists of names": "a request with two lists of names",
    "another request behind it": "a second request in the same PEM text",
    "to be an authority": "a request for a certificate authority",
    "too long a time": "a request for a lifetime of 68 years",
}


def of_case(name: str, tries: str) -> Attempt[Attacker]:
    """The attempt to get what the case requests."""
    expected = BY_NAME[name]
    outcomes = {"deny": DENIED, "ignore": IGNORED}
    outcome = REJECTED if expected.refused_by_api else outcomes[expected.expected]

    async def carry_out(attacker: Attacker) -> None:
        await attacker.join()
        case, filed = await attacker.file_case(name)
        if case.refused_by_api:
            assert not filed
        elif case.expected == "deny":
            await attacker.is_denied(filed, case.reason)
        else:
            await attacker.gets_its_own_certificate()
            assert not (await state_of(attacker.cluster.kubelets, filed)).conditions

    return Attempt(tries, outcome, carry_out)


def for_names(tries: str, text: str, **fields: list[str]) -> Attempt[Attacker]:
    """The attempt to get a certificate for these names and addresses, which csr denies."""

    async def carry_out(attacker: Attacker) -> None:
        await attacker.join()
        ips = [attacker.ip if each == "own" else each for each in fields["ips"]]
        request = await attacker.request_certificate(dns=fields["dns"], ips=ips)
        await attacker.is_denied(request, text)

    return Attempt(tries, DENIED, carry_out)


async def request_virtual_ip(attacker: Attacker) -> None:
    await attacker.join(machine={"addresses": attacker.with_addresses(f"{VIRTUAL_IP}/32")})
    request = await attacker.request_certificate(ips=[attacker.ip, VIRTUAL_IP])
    await attacker.still_waits(request, f"{VIRTUAL_IP} is in the certificate of an API server")


async def request_attested_address(attacker: Attacker) -> None:
    await attacker.join(machine={"addresses": attacker.with_addresses(f"{VICTIM_IP}/24")})
    request = await attacker.request_certificate(ips=[attacker.ip, VICTIM_IP])
    await attacker.still_waits(request, "answers there")


async def request_unused_address(attacker: Attacker) -> None:
    await attacker.join()
    request = await attacker.request_certificate(ips=[attacker.ip, "10.229.250.250"])
    await attacker.still_waits(request, "is not on the machine")


async def request_without_node(attacker: Attacker) -> None:
    request = await attacker.request_certificate()
    await attacker.still_waits(request, "Node")


async def request_for_another_node(attacker: Attacker) -> None:
    await attacker.join()
    request = await attacker.request_certificate(dns=[VICTIM], ips=[])
    await attacker.is_denied(request, f"Node {VICTIM}'s own name")


async def approve_itself(attacker: Attacker) -> None:
    await attacker.join()
    request = await attacker.request_certificate(ips=[attacker.ip, "10.229.250.251"])
    approval = [{"op": "add", "path": "/status/conditions", "value": [APPROVED]}]
    status = await attacker.request("PATCH", f"{CSRS}/{request}/approval", approval, JSON_PATCH)
    assert status == 403
    await attacker.still_waits(request, "is not on the machine")


async def flood(attacker: Attacker) -> None:
    await attacker.join()
    ask = attacker.request_certificate
    names = await asyncio.gather(*(ask(dns=["vault.internal.example"], ips=[]) for _ in range(FLOOD)))

    async def is_newest_answered() -> bool:
        states = [await state_of(attacker.cluster.kubelets, name) for name in names]
        return any(state.conditions for state in states)

    await wait_until(is_newest_answered, "the newest request is answered")
    states = [await state_of(attacker.cluster.kubelets, name) for name in names]
    assert sum(bool(state.conditions) for state in states) <= 20


REQUEST_ATTEMPTS: tuple[Attempt[Attacker], ...] = (
    for_names("a request for another node's address alone", f"Node {VICTIM}'s", dns=[], ips=[VICTIM_IP]),
    for_names(
        "a request for its own and another node's address", f"Node {VICTIM}'s", dns=[], ips=["own", VICTIM_IP]
    ),
    for_names("a request for another node's name and address", VICTIM, dns=[VICTIM], ips=[VICTIM_IP]),
    for_names(
        "a request for the name of a service outside the cluster",
        "is not attested",
        dns=["vault.internal.example"],
        ips=["own"],
    ),
    Attempt("a request for another node's name alone", DENIED, request_for_another_node),
    Attempt(
        "a request for another node's address, which its own Talos attests", WAITS, request_attested_address
    ),
    Attempt(
        "a request for the virtual IP of the API server, which its own Talos attests",
        WAITS,
        request_virtual_ip,
    ),
    Attempt("a request for an address that no machine has", WAITS, request_unused_address),
    Attempt("a request before its Node exists", WAITS, request_without_node),
    Attempt("approval of its own request", REJECTED, approve_itself),
    Attempt(f"{FLOOD} requests at once", "csr answers at most twenty; other nodes notice nothing", flood),
    *(of_case(name, tries) for name, tries in OF_CASES.items()),
)
