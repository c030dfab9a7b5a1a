"""Hostile and odd requests of Node web-1 as data, and the cluster in which they are judged.

Its machine lies: it attests an address and the name of db-1, and addresses and names of others.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.ip_addresses import parse_ip
from libs.common.contract.machine import AddressStatus, MachineFacts, MachineFault
from libs.common.contract.node import Node, NodeAddress
from libs.common.contract.signing_request import KUBELET_SERVING, NODES_GROUP, SigningRequest
from libs.common.kube.server_identity import ServerIdentity
from libs.testbed.kube_credentials import API_SERVER_HOSTS
from services.csr.core.decision import ApiEndpoint, ApprovalPolicy
from tests.builders import make_facts, make_node, make_node_enriched, make_request, make_unreachable
from tests.csr_der import (
    BASIC_CONSTRAINTS,
    BMP,
    CHALLENGE_PASSWORD,
    CN,
    COUNTRY,
    EMAIL,
    EXT_KEY_USAGE,
    EXTENSION_REQUEST,
    KEY_USAGE,
    MS_EXTENSION_REQUEST,
    ORGANIZATION,
    PRINTABLE,
    SERIAL,
    T61,
    UNIT,
    UTF8,
    RequestFields,
    encode_alternative_names,
    encode_attribute,
    encode_directory_name,
    encode_dns_name,
    encode_email,
    encode_extension,
    encode_extensions,
    encode_ip,
    encode_oid,
    encode_other_name,
    encode_pem,
    encode_registered_id,
    encode_rsa_key,
    encode_sequence,
    encode_tlv,
    encode_unsigned_request,
    encode_uri,
)

Expected = Literal["approve", "deny", "wait", "ignore"]

VIRTUAL_LINKS = ("lo", "dummy0")  # the other ones are in test_decide: a kubelet has 16 pending requests
WHO = "web-1"  # who asks in every case
SERVICE_NETWORKS = ("10.96.0.0/12", "fd00:10:96::/112")
API_SERVER = ServerIdentity(
    names=frozenset(host for host in API_SERVER_HOSTS if parse_ip(host) is None),
    addresses=frozenset(host for host in API_SERVER_HOSTS if parse_ip(host) is not None),
)
POLICY = ApprovalPolicy(
    service_networks=SERVICE_NETWORKS,
    api_endpoint=ApiEndpoint(identities=(API_SERVER,)),
    min_expiration_seconds=3600,
    max_expiration_seconds=30 * 86400,
)
SERVING = ("digital signature", "server auth")

OWN = (encode_dns_name("web-1"), encode_ip("10.0.0.5"))
CN_OF_WEB = (CN, "system:node:web-1")
IN_NODES = (ORGANIZATION, "system:nodes")


class CsrCase(msgspec.Struct, frozen=True, kw_only=True):
    """One request of web-1 and its expected decision."""

    name: str
    pem: Callable[[], bytes]
    expected: Expected
    reason: str  # a part of the decision's message
    refused_by_api: bool | None  # None: cannot be filed like that, who asks is written by the server
    usages: tuple[str, ...] = SERVING
    username: str = "system:node:web-1"
    groups: tuple[str, ...] = (NODES_GROUP, "system:authenticated")
    signer: str = KUBELET_SERVING
    expiration_seconds: int | None = None

    def request(self) -> SigningRequest:
        """As the watcher publishes it."""
        return make_request(
            pem=self.pem(),
            username=self.username,
            groups=self.groups,
            signer=self.signer,
            usages=self.usages,
            expiration_seconds=self.expiration_seconds,
        )


def _at(*addresses: str) -> tuple[AddressStatus, ...]:
    return tuple(AddressStatus(address=address, link="eth0", flags=128) for address in addresses)


def _written(*pairs: tuple[str, str]) -> tuple[NodeAddress, ...]:
    return tuple(NodeAddress(type=kind, address=address) for kind, address in pairs)


NODES: dict[str, Node] = {
    "web-1": make_node(uid="uid-web-1", ip="10.0.0.5,fd00:7::5"),
    "db-1": make_node("db-1", uid="uid-db-1", ip="10.0.0.9", pod_cidrs=("10.244.1.0/24",)),
    "db-2": make_node("db-2", uid="uid-db-2", ip="10.0.0.11"),
    "old-1": make_node("old-1", uid="uid-old-1", ip="10.0.0.7"),
    "writes-1": make_node(
        "writes-1",
        uid="uid-writes-1",
        ip="10.0.0.12",
        addresses=_written(("InternalIP", "10.0.0.8"), ("Hostname", "web-1"), ("InternalIP", "10.0.0.5")),
    ),
    "new-1": make_node("new-1", uid="uid-new-1", ip="10.0.0.10"),
}
FACTS: dict[str, MachineFacts] = {
    "web-1": make_facts(
        platform="aws",
        provider_id="aws:///eu-1/i-5",
        hostname="web-1.example.com",
        internal_dns="shared.example.com",
        external_dns="db-1",
        addresses=_at(
            "10.0.0.5/24",
            "fd00:7::5/64",
            "198.51.100.5/32",
            "10.0.0.7/24",
            "10.0.0.8/24",
            "10.0.0.9/24",
            "10.0.0.10/24",
            "10.0.0.77/24",
            "10.96.0.1/32",
            "10.255.0.1/32",
            "10.255.0.10/32",
            "127.0.0.1/8",
            "169.254.7.7/16",
            "fe80::5/64",
            "10.244.1.7/24",
        )
        + tuple(
            AddressStatus(address=f"198.51.100.{number}/32", link=link, flags=128)
            for number, link in enumerate(VIRTUAL_LINKS, start=101)
        ),
    ),
    "db-1": make_facts(
        node_name="db-1",
        node_ip="10.0.0.9",
        hostname="shared.example.com",
        addresses=_at("10.0.0.9/24", "10.0.0.77/24"),
    ),
    "db-2": make_facts(node_name="db-2", node_ip="10.0.0.11", addresses=_at("10.0.0.11/24")),
    "old-1": make_facts(node_name="old-1", node_ip="10.0.0.7", addresses=_at("10.0.0.7/24")),
    "writes-1": make_facts(node_name="writes-1", node_ip="10.0.0.12", addresses=_at("10.0.0.12/24")),
}
UNREACHABLE = ("old-1",)  # last known to have answered


def make_metadata_events() -> tuple[NodeEnriched | NodeUnreachable, ...]:
    """What metadata says of these Nodes; of new-1 nothing yet."""
    return tuple(
        make_unreachable(
            NODES[name],
            fault=MachineFault(kind="timeout", step="connect", message="no answer"),
            last_known=facts,
        )
        if name in UNREACHABLE
        else make_node_enriched(NODES[name], facts)
        for name, facts in FACTS.items()
    )


def _fields(**fields: object) -> Callable[[], bytes]:
    made = msgspec.structs.replace(RequestFields(sans=OWN), **fields)
    return lambda: encode_pem(made.sign())


def _asks(*sans: bytes) -> Callable[[], bytes]:
    return _fields(sans=sans)


def _also_dns(name: str) -> Callable[[], bytes]:
    return _asks(*OWN, encode_dns_name(name))


def _also_ip(address: str | bytes) -> Callable[[], bytes]:
    return _asks(*OWN, encode_ip(address))


def _subject(*rdns: tuple[tuple[str, str], ...], tag: int = UTF8) -> Callable[[], bytes]:
    return _fields(subject=rdns, subject_tag=tag)


def _named(common_name: str) -> Callable[[], bytes]:
    return _subject((IN_NODES,), ((CN, common_name),))


def _labelled(label: str) -> Callable[[], bytes]:
    return lambda: encode_pem(RequestFields(sans=OWN).sign(), label)


def _pem(make: Callable[[bytes], bytes]) -> Callable[[], bytes]:
    """A change of an honest request's PEM."""
    return lambda: make(encode_pem(RequestFields(sans=OWN).sign()))


def _der(make: Callable[[bytes], bytes]) -> Callable[[], bytes]:
    return lambda: encode_pem(make(RequestFields(sans=OWN).sign()))


def _case(
    expected: Expected,
    name: str,
    pem: Callable[[], bytes],
    reason: str,
    *,
    api: bool | None = False,
    **more: object,
) -> CsrCase:
    case = CsrCase(name=name, pem=pem, expected=expected, reason=reason, refused_by_api=api)
    return msgspec.structs.replace(case, **more)


def _cases(
    expected: Expected,
    ask: Callable[[str], Callable[[], bytes]],
    reason: str,
    values: Mapping[str, str],
    *,
    api: bool | None = False,
) -> Iterator[CsrCase]:
    """A case for each value, which the request has."""
    return (_case(expected, name, ask(value), reason, api=api) for name, value in values.items())


def _good() -> tuple[CsrCase, ...]:
    fine = "was approved"
    return (
        _case("approve", "name and address", _asks(*OWN), fine),
        _case("approve", "address only", _asks(encode_ip("10.0.0.5")), fine),
        _case("approve", "name only", _asks(encode_dns_name("web-1")), fine),
        _case("approve", "both families", _also_ip("fd00:7::5"), fine),
        _case("approve", "a public address on the machine", _also_ip("198.51.100.5"), fine),
        *_cases(
            "approve",
            _also_dns,
            fine,
            {
                "its full name": "web-1.example.com",
                "its full name in capitals": "WEB-1.Example.COM",
                "one name twice": "web-1",
            },
        ),
        _case("approve", "another Node only writes that address", _also_ip("10.0.0.8"), fine),
        _case(
            "approve",
            "RSA with key encipherment",
            _fields(key="RSA 2048"),
            fine,
            usages=(*SERVING, "key encipherment"),
        ),
        *_cases(
            "approve",
            lambda key: _fields(key=key),
            fine,
            {"RSA 3072": "RSA 3072", "ECDSA P-384": "P-384", "ECDSA P-521": "P-521", "Ed25519": "Ed25519"},
        ),
        _case("approve", "usages the other way round", _asks(*OWN), fine, usages=SERVING[::-1]),
        _case("approve", "subject the other way round", _subject((CN_OF_WEB,), (IN_NODES,)), fine),
        _case("approve", "a printable subject", _subject((IN_NODES,), (CN_OF_WEB,), tag=PRINTABLE), fine),
        _case("approve", "a subject in UTF-16", _subject((IN_NODES,), (CN_OF_WEB,), tag=BMP), fine),
        _case("approve", "a subject in T.61", _subject((IN_NODES,), (CN_OF_WEB,), tag=T61), fine),
        _case("approve", "a time within bounds", _asks(*OWN), fine, expiration_seconds=86400),
        _case("approve", "lines end as in DOS", _pem(lambda pem: pem.replace(b"\n", b"\r\n")), fine),
    )


def _others_names() -> tuple[CsrCase, ...]:
    mine = "is not attested by the machine of web-1"
    theirs = "is claimed by Node db-1, too, which has it as its node name and answers under it"
    return (
        _case(
            "wait", "name and address of db-1", _asks(encode_dns_name("db-1"), encode_ip("10.0.0.9")), theirs
        ),
        _case(
            "wait",
            "its own and those of db-1",
            _asks(*OWN, encode_dns_name("db-1"), encode_ip("10.0.0.9")),
            theirs,
        ),
        _case("wait", "the name of db-1 in capitals", _also_dns("DB-1"), theirs),
        _case("deny", "the name of db-2, which it does not attest", _also_dns("db-2"), "db-2's own name"),
        _case("deny", "any other name", _also_dns("vault.internal.example"), mine),
        _case("deny", "a name below its own", _also_dns("web-1.evil.example"), mine),
        _case("deny", "the first label of nothing attested", _also_dns("shared"), mine),
        _case("wait", "a name that db-1 attests, too", _also_dns("shared.example.com"), "Node db-1, too"),
        _case("wait", "the address where db-1 answers, attested", _also_ip("10.0.0.9"), "answers there"),
        _case("deny", "the address where db-2 answers", _also_ip("10.0.0.11"), "Node db-2's"),
        _case("deny", "that address alone", _asks(encode_ip("10.0.0.11")), "Node db-2's"),
        _case("wait", "an address that db-1 attests, too", _also_ip("10.0.0.77"), "as its machine says"),
        _case("wait", "where a Node answered that is silent now", _also_ip("10.0.0.7"), "Node old-1's"),
        _case("wait", "of a Node that was never asked", _also_ip("10.0.0.10"), "never been asked"),
        _case("wait", "an address of db-1's pods", _also_ip("10.244.1.7"), "is in a podCIDR of Node db-1"),
        *_cases(
            "wait",
            _also_ip,
            "which accepts any address",
            {
                f"an address on {link} only": f"198.51.100.{number}"
                for number, link in enumerate(VIRTUAL_LINKS, start=101)
            },
        ),
        _case("wait", "an address that nobody has", _also_ip("10.0.0.99"), "not on the machine of web-1"),
    )


def _forbidden_names() -> tuple[CsrCase, ...]:
    bad, api_server = "is no host name", "is the API server's"
    return (
        *_cases(
            "deny",
            _also_dns,
            "is a wildcard",
            {
                "a wildcard": "*.example.com",
                "a wildcard for all": "*",
                "a wildcard inside": "web-*.example.com",
            },
        ),
        _case("deny", "kubernetes", _also_dns("kubernetes"), api_server),
        _case("deny", "kubernetes.default.svc", _also_dns("kubernetes.default.svc"), api_server),
        _case("deny", "Kubernetes in capitals", _also_dns("KUBERNETES.default"), api_server),
        _case("deny", "kubernetes with a dot", _also_dns("kubernetes."), api_server),
        _case(
            "deny",
            "the host name of the API server",
            _also_dns("api.prod.example.com"),
            "'api.prod.example.com' is in the certificate of an API server",
        ),
        _case("deny", "a control plane's full name", _also_dns("CP-1.example.com"), "API server"),
        _case("deny", "a Service", _also_dns("webhook.kube-system.svc"), "is a Service's"),
        *_cases(
            "deny",
            _also_dns,
            "is a Service's",
            {
                "a Service by its full name": "a.b.svc.cluster.local",
                "a Service in the cluster's domain": "metrics-server.kube-system.svc.corp.internal",
                "a Service in capitals": "Metrics-Server.Kube-System.SVC.Corp.Internal",
                "a pod of a StatefulSet": "db-0.db.prod.svc.corp.internal",
                "a Service of several clusters": "db.prod.svc.clusterset.local",
                "a pod": "10-244-1-7.default.pod",
                "a pod in the default domain": "10-244-1-7.default.pod.cluster.local",
            },
        ),
        _case("deny", "localhost", _also_dns("LocalHost"), "is every host's"),
        _case("deny", "a trailing dot", _asks(encode_dns_name("web-1."), encode_ip("10.0.0.5")), bad),
        *_cases(
            "deny",
            _also_dns,
            bad,
            {
                "a leading dot": ".web-1",
                "an empty label": "web-1..example.com",
                "an empty name": "",
                "a space": "web-1 ",
                "a NUL": "web-1\0.evil.example",
                "a line break": "web-1\nweb-1",
                "a URL": "https://web-1",
                "a port": "web-1:10250",
                "300 characters": ".".join(["a" * 59] * 5),
                "a label of 64": "a" * 64,
            },
        ),
        *_cases(
            "deny", _also_dns, bad, {"Unicode": "wéb-1", "Cyrillic that looks the same": "wеb-1"}, api=True
        ),
        _case("deny", "Punycode", _also_dns("xn--wb-1-bpa"), "is not attested"),
        _case(
            "deny",
            "its address as a name",
            _asks(encode_dns_name("web-1"), encode_dns_name("10.0.0.5")),
            "is an address",
        ),
        _case("deny", "an IPv6 address as a name", _also_dns("fd00:7::5"), bad),
        _case("deny", "an address in two numbers", _also_dns("10.5"), "is an address"),
        _case("deny", "an address in hexadecimal", _also_dns("0x0a000005"), "is an address"),
    )


def _forbidden_addresses() -> tuple[CsrCase, ...]:
    unreachable, odd = "not a unicast address that others can reach", "network"
    return (
        _case("deny", "IPv4 inside IPv6", _also_ip("::ffff:10.0.0.5"), "is IPv4-mapped"),
        _case("deny", "db-2 inside IPv6", _also_ip("::ffff:10.0.0.11"), "is IPv4-mapped"),
        *_cases(
            "deny",
            _also_ip,
            unreachable,
            {
                "loopback": "127.0.0.1",
                "IPv6 loopback": "::1",
                "link-local": "169.254.7.7",
                "IPv6 link-local": "fe80::5",
                "multicast": "224.0.0.1",
                "unspecified": "0.0.0.0",
                "IPv6 unspecified": "::",
                "broadcast": "255.255.255.255",
            },
        ),
        _case("deny", "the address of a Service", _also_ip("10.96.0.1"), "10.96.0.1 is a Service's"),
        _case("deny", "a network", _also_ip(b"\x0a\0\0\0\xff\0\0\0"), odd, api=True),
        _case("deny", "three bytes", _also_ip(b"\x0a\0\0"), "can be read", api=True),
        _case("deny", "no bytes", _also_ip(b""), "can be read", api=True),
    )


def _api_servers_addresses() -> tuple[CsrCase, ...]:
    """Which web-1 attests."""
    why = "is in the certificate of an API server, is no node IP at which the machine of web-1 answered"
    return (
        _case("wait", "the address of an API server", _also_ip("10.255.0.1"), why),
        _case("wait", "the virtual IP of the API server", _also_ip("10.255.0.10"), why),
    )


def _other_kinds() -> tuple[CsrCase, ...]:
    upn = "1.3.6.1.4.1.311.20.2.3"
    return (
        _case(
            "deny",
            "an e-mail address",
            _asks(*OWN, encode_email("root@example.com")),
            "e-mail 'root@example.com'",
        ),
        _case(
            "deny", "a URI", _asks(*OWN, encode_uri("spiffe://cluster/ns/x")), "URI 'spiffe://cluster/ns/x'"
        ),
        _case("deny", "a directory name", _asks(*OWN, encode_directory_name((CN_OF_WEB,))), "directory name"),
        _case(
            "deny",
            "another kind of name",
            _asks(*OWN, encode_other_name(upn, "admin@example.com")),
            "other name",
        ),
        _case("deny", "a registered id", _asks(*OWN, encode_registered_id("1.2.3.4")), "registered id"),
        _case("deny", "an X.400 address", _asks(*OWN, encode_tlv(0xA3)), "can be read"),
        _case("deny", "only an e-mail address", _asks(encode_email("root@example.com")), "e-mail"),
        _case("deny", "nothing", _asks(), "asks for no DNS name and no IP address"),
        _case(
            "deny", "an empty list", _fields(extensions=(encode_alternative_names(),)), "asks for no DNS name"
        ),
    )


def _many() -> tuple[CsrCase, ...]:
    names = tuple(encode_dns_name(f"n{number}.example.com") for number in range(101))
    addresses = tuple(encode_ip(f"10.{number // 250}.{number % 250}.5") for number in range(3900))
    return (
        _case("deny", "101 names", _asks(*names), "101 names and addresses, more than 100"),
        _case("deny", "its own name 101 times", _asks(*[encode_dns_name("web-1")] * 101), "more than 100"),
        _case("deny", "3900 addresses", _asks(*addresses), "3900 names and addresses"),
        _case("deny", "more than 32 kB", _asks(*addresses, *addresses), "than 32768"),
    )


def _subjects() -> tuple[CsrCase, ...]:
    name, org, more = "its common name is", "its organization is", "more than a common name"
    return (
        _case("deny", "db-1 by common name", _named("system:node:db-1"), name, api=True),
        _case("deny", "no common name", _subject((IN_NODES,)), name, api=True),
        _case("deny", "an admin by common name", _named("kubernetes-admin"), name, api=True),
        _case(
            "deny", "two common names", _subject((IN_NODES,), ((CN, "system:node:db-1"),), (CN_OF_WEB,)), name
        ),
        _case("deny", "the same common name twice", _subject((IN_NODES,), (CN_OF_WEB,), (CN_OF_WEB,)), name),
        _case("deny", "a common name in capitals", _named("system:node:WEB-1"), name, api=True),
        _case("deny", "no organization", _subject((CN_OF_WEB,)), org),
        _case("deny", "masters", _subject(((ORGANIZATION, "system:masters"),), (CN_OF_WEB,)), org),
        _case(
            "deny",
            "nodes and masters",
            _subject((IN_NODES,), ((ORGANIZATION, "system:masters"),), (CN_OF_WEB,)),
            org,
        ),
        _case("deny", "several values", _subject((IN_NODES, CN_OF_WEB)), "several values"),
        _case(
            "deny",
            "nodes and masters in one",
            _subject((IN_NODES, (ORGANIZATION, "system:masters")), (CN_OF_WEB,)),
            "several",
        ),
        _case(
            "deny",
            "a unit",
            _subject((IN_NODES,), ((UNIT, "x"),), (CN_OF_WEB,)),
            f"{more} and an organization: 2",
        ),
        _case("deny", "a country", _subject(((COUNTRY, "DE"),), (IN_NODES,), (CN_OF_WEB,)), more),
        _case("deny", "a serial number", _subject((IN_NODES,), (CN_OF_WEB,), ((SERIAL, "7"),)), more),
        _case("deny", "an e-mail in it", _subject((IN_NODES,), (CN_OF_WEB,), ((EMAIL, "a@b"),)), more),
        _case("deny", "nobody", _subject(), name, api=True),
        _case("deny", "no text", _subject((IN_NODES,), (CN_OF_WEB,), tag=0x02), "can be read", api=True),
    )


def _keys() -> tuple[CsrCase, ...]:
    curve, own = "its key is on curve", RequestFields(sans=OWN)
    unsigned = "its signature is not by the key in it"
    huge = 2**16383 + 12345
    return (
        _case("deny", "RSA 1024", _fields(key="RSA 1024"), "has 1024 bits"),
        _case(
            "deny",
            "RSA 16384",
            lambda: encode_pem(encode_unsigned_request(encode_rsa_key(huge, 65537), own)),
            "RSA",
            api=True,
        ),
        _case(
            "deny",
            "an RSA exponent as long as its modulus",
            lambda: encode_pem(encode_unsigned_request(encode_rsa_key(2**4095 + 12345, 2**4095 + 1), own)),
            "exponent",
            api=True,
        ),
        _case("deny", "P-192", _fields(key="P-192"), curve, api=True),
        _case("deny", "P-224", _fields(key="P-224"), curve),
        _case("deny", "secp256k1", _fields(key="secp256k1"), curve, api=True),
        _case("deny", "DSA", _fields(key="DSA"), "its key is of algorithm", api=True),
        _case("deny", "Ed448", _fields(key="Ed448"), "its key is of algorithm", api=True),
        _case("deny", "signed by another key", _fields(foreign_signature=True), unsigned, api=True),
        _case(
            "deny",
            "an RSA request signed by another",
            _fields(key="RSA 2048", foreign_signature=True),
            unsigned,
            api=True,
        ),
        _case("deny", "signed otherwise than it says", _fields(signed_as="RSA"), unsigned, api=True),
        _case(
            "deny", "signed with MD5, it says", _fields(key="RSA 2048", signed_as="MD5"), unsigned, api=True
        ),
        _case(
            "deny",
            "the last byte of the signature",
            _der(lambda der: der[:-1] + bytes([der[-1] ^ 1])),
            unsigned,
            api=True,
        ),
    )


def _odd_der() -> tuple[CsrCase, ...]:
    names, theirs = (
        encode_alternative_names(*OWN),
        encode_alternative_names(encode_dns_name("db-1"), encode_ip("10.0.0.9")),
    )
    ca = encode_extension(BASIC_CONSTRAINTS, encode_sequence(encode_tlv(0x01, b"\xff")), critical=True)
    client = encode_extension(EXT_KEY_USAGE, encode_sequence(encode_oid("1.3.6.1.5.5.7.3.2")))
    usage = encode_extension(KEY_USAGE, b"\x03\x02\x02\x04")
    own, odd = encode_extensions(EXTENSION_REQUEST, names), "it has an attribute"
    return (
        _case("deny", "two lists of names", _fields(extensions=(names, theirs)), "Duplicate", api=True),
        _case("deny", "the same list twice", _fields(extensions=(names, names)), "Duplicate", api=True),
        _case(
            "deny",
            "two attributes of extensions",
            _fields(attributes=(own, encode_extensions(EXTENSION_REQUEST, theirs))),
            "more than once",
            api=True,
        ),
        _case(
            "deny",
            "attributes out of order",
            _fields(
                attributes=(encode_attribute(CHALLENGE_PASSWORD, encode_tlv(UTF8, b"x" * 200)), own),
                sort_attributes=False,
            ),
            "can be read",
        ),
        _case(
            "deny",
            "two values in the attribute",
            _fields(
                attributes=(
                    encode_attribute(EXTENSION_REQUEST, encode_sequence(names), encode_sequence(theirs)),
                )
            ),
            "can be read",
        ),
        _case(
            "deny",
            "Microsoft's attribute for its own, the standard one for others",
            _fields(
                attributes=(
                    encode_extensions(MS_EXTENSION_REQUEST, names),
                    encode_extensions(EXTENSION_REQUEST, theirs),
                )
            ),
            odd,
        ),
        _case(
            "deny",
            "Microsoft's attribute",
            _fields(attributes=(encode_extensions(MS_EXTENSION_REQUEST, names),)),
            odd,
        ),
        _case(
            "deny",
            "a challenge password",
            _fields(attributes=(encode_attribute(CHALLENGE_PASSWORD, encode_tlv(UTF8, b"secret")), own)),
            odd,
        ),
        _case(
            "deny",
            "to be an authority",
            _fields(extensions=(names, ca)),
            f"asks for extension {BASIC_CONSTRAINTS}",
        ),
        _case(
            "deny",
            "to be a client",
            _fields(extensions=(names, client)),
            f"asks for extension {EXT_KEY_USAGE}",
        ),
        _case(
            "deny",
            "to sign certificates",
            _fields(extensions=(names, usage)),
            f"asks for extension {KEY_USAGE}",
        ),
        _case(
            "deny",
            "an extension of no kind",
            _fields(extensions=(names, encode_extension("1.2.3.4.5", b"x"))),
            "1.2.3.4.5",
        ),
        _case(
            "deny",
            "names that are none",
            _fields(extensions=(encode_extension("2.5.29.17", b"\x04\x01x"),)),
            "can be read",
            api=True,
        ),
        _case("deny", "another version", _fields(version=1), "InvalidVersion"),
        _case("deny", "bytes behind it", _fields(trailing=b"\0\0"), "can be read", api=True),
        _case("deny", "half of it", _der(lambda der: der[: len(der) // 2]), "can be read", api=True),
        _case("deny", "no DER", lambda: encode_pem(b"garbage " * 40), "can be read", api=True),
        _case("deny", "DER of no length", lambda: encode_pem(b"\x30\x80\0\0"), "can be read", api=True),
        _case(
            "deny",
            "DER of a huge length",
            lambda: encode_pem(b"\x30\x84\xff\xff\xff\xff"),
            "can be read",
            api=True,
        ),
        _case("deny", "DER 5000 deep", lambda: encode_pem(b"\x30\x80" * 5000), "can be read", api=True),
    )


def _odd_pem() -> tuple[CsrCase, ...]:
    one = "not exactly one PEM block"

    def second() -> bytes:
        return encode_pem(RequestFields(sans=(encode_dns_name("db-1"), encode_ip("10.0.0.9"))).sign())

    return (
        _case("deny", "nothing at all", lambda: b"", "it is empty", api=True),
        _case("deny", "no PEM", lambda: b"please", one, api=True),
        _case("deny", "DER without PEM", lambda: RequestFields(sans=OWN).sign(), one, api=True),
        _case("deny", "a certificate's label", _labelled("CERTIFICATE"), one, api=True),
        _case("deny", "the old label", _labelled("NEW CERTIFICATE REQUEST"), one, api=True),
        _case(
            "deny",
            "another request behind it",
            lambda: encode_pem(RequestFields(sans=OWN).sign()) + second(),
            one,
        ),
        _case(
            "deny",
            "another request before it",
            lambda: second() + encode_pem(RequestFields(sans=OWN).sign()),
            one,
        ),
        _case("deny", "words before it", _pem(lambda pem: b"my request\n" + pem), one),
        _case("deny", "words behind it", _pem(lambda pem: pem + b"thank you\n"), one),
        _case("deny", "a header", _pem(lambda pem: pem.replace(b"-----\n", b"-----\nName: x\n\n", 1)), one),
        _case("deny", "a broken block before it", _pem(lambda pem: pem[:80] + b"\n" + pem), one),
        _case("deny", "no base64", _pem(lambda pem: pem.replace(b"\nMII", b"\n!!!", 1)), one, api=True),
        _case(
            "deny",
            "padding in the middle",
            _pem(lambda pem: pem.replace(b"\nMII", b"\nM==", 1)),
            "can be read",
            api=True,
        ),
        _case("deny", "no end", _pem(lambda pem: pem.split(b"-----END")[0]), one, api=True),
        _case("deny", "bytes that are no text", lambda: bytes(range(256)) * 8, one, api=True),
    )


def _who_and_what_for() -> tuple[CsrCase, ...]:
    ask, lack, have = _asks(*OWN), "its usages lack", "its usages have"
    return (
        _case("deny", "no digital signature", ask, lack, usages=("server auth",)),
        _case("deny", "for a client", ask, lack, usages=("digital signature", "client auth")),
        _case("deny", "for a server and a client", ask, have, usages=(*SERVING, "client auth")),
        _case("deny", "to sign certificates, by usage", ask, have, usages=(*SERVING, "cert sign")),
        _case("deny", "for any use", ask, lack, usages=("any",)),
        _case("deny", "for nothing", ask, lack, usages=(), api=True),
        _case("deny", "a use that is none", ask, have, usages=(*SERVING, "everything"), api=True),
        _case("deny", "too short a time", ask, "is less than 3600", expiration_seconds=600),
        _case("deny", "too long a time", ask, "is more than 2592000", expiration_seconds=2**31 - 1),
        _case("deny", "a time below zero", ask, "is less than 3600", expiration_seconds=-1, api=True),
        _case(
            "ignore",
            "nobody of the nodes",
            ask,
            "is not in group",
            groups=("system:authenticated",),
            api=None,
        ),
        _case(
            "ignore", "a group that looks alike", ask, "is not in group", groups=("system:node",), api=None
        ),
        _case("ignore", "a user that is no node", ask, "not ours", username="jane", api=None),
        _case("ignore", "a node without a name", ask, "not ours", username="system:node:", api=None),
        _case(
            "ignore", "a node in capitals", ask, "no possible Node", username="system:node:Web-1", api=None
        ),
        _case(
            "ignore", "a node with a line break", ask, "no possible", username="system:node:a\nb", api=None
        ),
        _case("deny", "as db-1", ask, "its common name is", username="system:node:db-1", api=None),
        _case(
            "ignore",
            "for a client of the API server",
            ask,
            "not ours",
            signer="kubernetes.io/kube-apiserver-client",
        ),
        _case("ignore", "of another signer", ask, "not ours", signer="example.com/serving"),
    )


CASES: tuple[CsrCase, ...] = (
    *_good(),
    *_others_names(),
    *_forbidden_names(),
    *_forbidden_addresses(),
    *_api_servers_addresses(),
    *_other_kinds(),
    *_many(),
    *_subjects(),
    *_keys(),
    *_odd_der(),
    *_odd_pem(),
    *_who_and_what_for(),
)
# These depend on what web-1 and the other machines attest; the rest only on web-1.
AMONG_OTHERS = frozenset(
    {case.name for case in (*_others_names(), *_api_servers_addresses())}
    | {"another Node only writes that address"}
)
