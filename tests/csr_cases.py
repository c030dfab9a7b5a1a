"""Hostile and odd requests of Node web-1 as data, and the cluster in which they are judged.

Its machine lies: it attests an address and the name of db-1, and addresses and names of others.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
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
    reason: str,
    pem: Callable[[], bytes],
    *,
    api: bool | None = False,
    **more: object,
) -> CsrCase:
    case = CsrCase(name=name, pem=pem, expected=expected, reason=reason, refused_by_api=api)
    return msgspec.structs.replace(case, **more)


def _cases(
    expected: Expected,
    reason: str,
    pems: Mapping[str, Callable[[], bytes]],
    *,
    api: bool | None = False,
    **more: object,
) -> Iterator[CsrCase]:
    """A case for each request, by its name."""
    return (_case(expected, name, reason, pem, api=api, **more) for name, pem in pems.items())


def _good() -> Iterator[CsrCase]:
    fine = "was approved"
    pems = {
        "name and address": _asks(*OWN),
        "address only": _asks(encode_ip("10.0.0.5")),
        "name only": _asks(encode_dns_name("web-1")),
        "both families": _also_ip("fd00:7::5"),
        "a public address on the machine": _also_ip("198.51.100.5"),
        "its full name": _also_dns("web-1.example.com"),
        "its full name in capitals": _also_dns("WEB-1.Example.COM"),
        "one name twice": _also_dns("web-1"),
        "another Node only writes that address": _also_ip("10.0.0.8"),
        **{key: _fields(key=key) for key in ("RSA 3072", "Ed25519")},
        **{f"ECDSA {curve}": _fields(key=curve) for curve in ("P-384", "P-521")},
        "subject the other way round": _subject((CN_OF_WEB,), (IN_NODES,)),
        "a printable subject": _subject((IN_NODES,), (CN_OF_WEB,), tag=PRINTABLE),
        "a subject in UTF-16": _subject((IN_NODES,), (CN_OF_WEB,), tag=BMP),
        "a subject in T.61": _subject((IN_NODES,), (CN_OF_WEB,), tag=T61),
        "lines end as in DOS": _pem(lambda pem: pem.replace(b"\n", b"\r\n")),
    }
    yield from _cases("approve", fine, pems)
    rsa, usages = {"RSA with key encipherment": _fields(key="RSA 2048")}, (*SERVING, "key encipherment")
    yield from _cases("approve", fine, rsa, usages=usages)
    yield from _cases("approve", fine, {"usages the other way round": _asks(*OWN)}, usages=SERVING[::-1])
    yield from _cases("approve", fine, {"a time within bounds": _asks(*OWN)}, expiration_seconds=86400)


def _others_names() -> Iterator[CsrCase]:
    of_db_1 = (encode_dns_name("db-1"), encode_ip("10.0.0.9"))
    waits: dict[str, dict[str, Callable[[], bytes]]] = {
        "is claimed by Node db-1, too, which has it as its node name and answers under it": {
            "name and address of db-1": _asks(*of_db_1),
            "its own and those of db-1": _asks(*OWN, *of_db_1),
            "the name of db-1 in capitals": _also_dns("DB-1"),
        },
        "Node db-1, too": {"a name that db-1 attests, too": _also_dns("shared.example.com")},
        "answers there": {"the address where db-1 answers, attested": _also_ip("10.0.0.9")},
        "as its machine says": {"an address that db-1 attests, too": _also_ip("10.0.0.77")},
        "Node old-1's": {"where a Node answered that is silent now": _also_ip("10.0.0.7")},
        "never been asked": {"of a Node that was never asked": _also_ip("10.0.0.10")},
        "is in a podCIDR of Node db-1": {"an address of db-1's pods": _also_ip("10.244.1.7")},
        "which accepts any address": {
            f"an address on {link} only": _also_ip(f"198.51.100.{number}")
            for number, link in enumerate(VIRTUAL_LINKS, start=101)
        },
        "not on the machine of web-1": {"an address that nobody has": _also_ip("10.0.0.99")},
    }
    denied: dict[str, dict[str, Callable[[], bytes]]] = {
        "db-2's own name": {"the name of db-2, which it does not attest": _also_dns("db-2")},
        "is not attested by the machine of web-1": {
            "any other name": _also_dns("vault.internal.example"),
            "a name below its own": _also_dns("web-1.evil.example"),
            "the first label of nothing attested": _also_dns("shared"),
        },
        "Node db-2's": {
            "the address where db-2 answers": _also_ip("10.0.0.11"),
            "that address alone": _asks(encode_ip("10.0.0.11")),
        },
    }
    for reason, pems in waits.items():
        yield from _cases("wait", reason, pems)
    for reason, pems in denied.items():
        yield from _cases("deny", reason, pems)


def _forbidden_names() -> Iterator[CsrCase]:
    bad = "is no host name"
    names = {
        "is a wildcard": {
            "a wildcard": "*.example.com",
            "a wildcard for all": "*",
            "a wildcard inside": "web-*.example.com",
        },
        "is the API server's": {
            "kubernetes": "kubernetes",
            "kubernetes.default.svc": "kubernetes.default.svc",
            "Kubernetes in capitals": "KUBERNETES.default",
            "kubernetes with a dot": "kubernetes.",
        },
        "'api.prod.example.com' is in the certificate of an API server": {
            "the host name of the API server": "api.prod.example.com",
        },
        "API server": {"a control plane's full name": "CP-1.example.com"},
        "is a Service's": {
            "a Service": "webhook.kube-system.svc",
            "a Service by its full name": "a.b.svc.cluster.local",
            "a Service in the cluster's domain": "metrics-server.kube-system.svc.corp.internal",
            "a Service in capitals": "Metrics-Server.Kube-System.SVC.Corp.Internal",
            "a pod of a StatefulSet": "db-0.db.prod.svc.corp.internal",
            "a Service of several clusters": "db.prod.svc.clusterset.local",
            "a pod": "10-244-1-7.default.pod",
            "a pod in the default domain": "10-244-1-7.default.pod.cluster.local",
        },
        "is every host's": {"localhost": "LocalHost"},
        bad: {
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
            "an IPv6 address as a name": "fd00:7::5",
        },
        "is not attested": {"Punycode": "xn--wb-1-bpa"},
        "is an address": {
            "an address in two numbers": "10.5",
            "an address in hexadecimal": "0x0a000005",
        },
    }
    for reason, values in names.items():
        yield from _cases("deny", reason, {name: _also_dns(value) for name, value in values.items()})
    foreign = {"Unicode": _also_dns("wéb-1"), "Cyrillic that looks the same": _also_dns("wеb-1")}
    yield from _cases("deny", bad, foreign, api=True)
    dotted = _asks(encode_dns_name("web-1."), encode_ip("10.0.0.5"))
    yield from _cases("deny", bad, {"a trailing dot": dotted})
    address = _asks(encode_dns_name("web-1"), encode_dns_name("10.0.0.5"))
    yield from _cases("deny", "is an address", {"its address as a name": address})


def _forbidden_addresses() -> Iterator[CsrCase]:
    addresses = {
        "is IPv4-mapped": {"IPv4 inside IPv6": "::ffff:10.0.0.5", "db-2 inside IPv6": "::ffff:10.0.0.11"},
        "not a unicast address that others can reach": {
            "loopback": "127.0.0.1",
            "IPv6 loopback": "::1",
            "link-local": "169.254.7.7",
            "IPv6 link-local": "fe80::5",
            "multicast": "224.0.0.1",
            "unspecified": "0.0.0.0",
            "IPv6 unspecified": "::",
            "broadcast": "255.255.255.255",
        },
        "10.96.0.1 is a Service's": {"the address of a Service": "10.96.0.1"},
    }
    for reason, values in addresses.items():
        yield from _cases("deny", reason, {name: _also_ip(value) for name, value in values.items()})
    yield from _cases("deny", "network", {"a network": _also_ip(b"\x0a\0\0\0\xff\0\0\0")}, api=True)
    odd = {"three bytes": _also_ip(b"\x0a\0\0"), "no bytes": _also_ip(b"")}
    yield from _cases("deny", "can be read", odd, api=True)


def _api_servers_addresses() -> Iterator[CsrCase]:
    """Which web-1 attests."""
    why = "is in the certificate of an API server, is no node IP at which the machine of web-1 answered"
    pems = {
        "the address of an API server": _also_ip("10.255.0.1"),
        "the virtual IP of the API server": _also_ip("10.255.0.10"),
    }
    yield from _cases("wait", why, pems)


def _other_kinds() -> Iterator[CsrCase]:
    mail, uri = encode_email("root@example.com"), encode_uri("spiffe://cluster/ns/x")
    upn = encode_other_name("1.3.6.1.4.1.311.20.2.3", "admin@example.com")
    kinds = {
        "e-mail 'root@example.com'": {"an e-mail address": _asks(*OWN, mail)},
        "URI 'spiffe://cluster/ns/x'": {"a URI": _asks(*OWN, uri)},
        "directory name": {"a directory name": _asks(*OWN, encode_directory_name((CN_OF_WEB,)))},
        "other name": {"another kind of name": _asks(*OWN, upn)},
        "registered id": {"a registered id": _asks(*OWN, encode_registered_id("1.2.3.4"))},
        "can be read": {"an X.400 address": _asks(*OWN, encode_tlv(0xA3))},
        "e-mail": {"only an e-mail address": _asks(mail)},
        "asks for no DNS name and no IP address": {"nothing": _asks()},
        "asks for no DNS name": {"an empty list": _fields(extensions=(encode_alternative_names(),))},
    }
    for reason, pems in kinds.items():
        yield from _cases("deny", reason, pems)


def _many() -> Iterator[CsrCase]:
    names = tuple(encode_dns_name(f"n{number}.example.com") for number in range(101))
    addresses = tuple(encode_ip(f"10.{number // 250}.{number % 250}.5") for number in range(3900))
    many = {
        "101 names and addresses, more than 100": {"101 names": _asks(*names)},
        "more than 100": {"its own name 101 times": _asks(*[encode_dns_name("web-1")] * 101)},
        "3900 names and addresses": {"3900 addresses": _asks(*addresses)},
        "than 32768": {"more than 32 kB": _asks(*addresses, *addresses)},
    }
    for reason, pems in many.items():
        yield from _cases("deny", reason, pems)


def _subjects() -> Iterator[CsrCase]:
    name, org, masters = "its common name is", "its organization is", (ORGANIZATION, "system:masters")
    more, several = "more than a common name", "several values"
    subjects = {
        name: {
            "two common names": _subject((IN_NODES,), ((CN, "system:node:db-1"),), (CN_OF_WEB,)),
            "the same common name twice": _subject((IN_NODES,), (CN_OF_WEB,), (CN_OF_WEB,)),
        },
        org: {
            "no organization": _subject((CN_OF_WEB,)),
            "masters": _subject((masters,), (CN_OF_WEB,)),
            "nodes and masters": _subject((IN_NODES,), (masters,), (CN_OF_WEB,)),
        },
        several: {"several values": _subject((IN_NODES, CN_OF_WEB))},
        "several": {"nodes and masters in one": _subject((IN_NODES, masters), (CN_OF_WEB,))},
        f"{more} and an organization: 2": {"a unit": _subject((IN_NODES,), ((UNIT, "x"),), (CN_OF_WEB,))},
        more: {
            "a country": _subject(((COUNTRY, "DE"),), (IN_NODES,), (CN_OF_WEB,)),
            "a serial number": _subject((IN_NODES,), (CN_OF_WEB,), ((SERIAL, "7"),)),
            "an e-mail in it": _subject((IN_NODES,), (CN_OF_WEB,), ((EMAIL, "a@b"),)),
        },
    }
    for reason, pems in subjects.items():
        yield from _cases("deny", reason, pems)
    others = {
        "db-1 by common name": _named("system:node:db-1"),
        "no common name": _subject((IN_NODES,)),
        "an admin by common name": _named("kubernetes-admin"),
        "a common name in capitals": _named("system:node:WEB-1"),
        "nobody": _subject(),
    }
    yield from _cases("deny", name, others, api=True)
    no_text = {"no text": _subject((IN_NODES,), (CN_OF_WEB,), tag=0x02)}
    yield from _cases("deny", "can be read", no_text, api=True)


def _keys() -> Iterator[CsrCase]:
    own, curve = RequestFields(sans=OWN), "its key is on curve"
    huge, long = encode_rsa_key(2**16383 + 12345, 65537), encode_rsa_key(2**4095 + 12345, 2**4095 + 1)
    yield from _cases("deny", "has 1024 bits", {"RSA 1024": _fields(key="RSA 1024")})
    yield from _cases("deny", curve, {"P-224": _fields(key="P-224")})
    keys = {
        "RSA": {"RSA 16384": lambda: encode_pem(encode_unsigned_request(huge, own))},
        "exponent": {
            "an RSA exponent as long as its modulus": lambda: encode_pem(encode_unsigned_request(long, own)),
        },
        curve: {"P-192": _fields(key="P-192"), "secp256k1": _fields(key="secp256k1")},
        "its key is of algorithm": {"DSA": _fields(key="DSA"), "Ed448": _fields(key="Ed448")},
        "its signature is not by the key in it": {
            "signed by another key": _fields(foreign_signature=True),
            "an RSA request signed by another": _fields(key="RSA 2048", foreign_signature=True),
            "signed otherwise than it says": _fields(signed_as="RSA"),
            "signed with MD5, it says": _fields(key="RSA 2048", signed_as="MD5"),
            "the last byte of the signature": _der(lambda der: der[:-1] + bytes([der[-1] ^ 1])),
        },
    }
    for reason, pems in keys.items():
        yield from _cases("deny", reason, pems, api=True)


def _odd_der() -> Iterator[CsrCase]:
    names = encode_alternative_names(*OWN)
    theirs = encode_alternative_names(encode_dns_name("db-1"), encode_ip("10.0.0.9"))
    ca = encode_extension(BASIC_CONSTRAINTS, encode_sequence(encode_tlv(0x01, b"\xff")), critical=True)
    client = encode_extension(EXT_KEY_USAGE, encode_sequence(encode_oid("1.3.6.1.5.5.7.3.2")))
    usage = encode_extension(KEY_USAGE, b"\x03\x02\x02\x04")
    own, of_others = (encode_extensions(EXTENSION_REQUEST, each) for each in (names, theirs))
    microsofts = encode_extensions(MS_EXTENSION_REQUEST, names)
    password, long_password = (
        encode_attribute(CHALLENGE_PASSWORD, encode_tlv(UTF8, text)) for text in (b"secret", b"x" * 200)
    )
    two_values = encode_attribute(EXTENSION_REQUEST, encode_sequence(names), encode_sequence(theirs))
    unreadable = "can be read"
    odd = {
        unreadable: {
            "attributes out of order": _fields(attributes=(long_password, own), sort_attributes=False),
            "two values in the attribute": _fields(attributes=(two_values,)),
        },
        "it has an attribute": {
            "Microsoft's attribute for its own, the standard one for others": _fields(
                attributes=(microsofts, of_others)
            ),
            "Microsoft's attribute": _fields(attributes=(microsofts,)),
            "a challenge password": _fields(attributes=(password, own)),
        },
        f"asks for extension {BASIC_CONSTRAINTS}": {"to be an authority": _fields(extensions=(names, ca))},
        f"asks for extension {EXT_KEY_USAGE}": {"to be a client": _fields(extensions=(names, client))},
        f"asks for extension {KEY_USAGE}": {"to sign certificates": _fields(extensions=(names, usage))},
        "1.2.3.4.5": {
            "an extension of no kind": _fields(extensions=(names, encode_extension("1.2.3.4.5", b"x"))),
        },
        "InvalidVersion": {"another version": _fields(version=1)},
    }
    refused = {
        "Duplicate": {
            "two lists of names": _fields(extensions=(names, theirs)),
            "the same list twice": _fields(extensions=(names, names)),
        },
        "more than once": {"two attributes of extensions": _fields(attributes=(own, of_others))},
        unreadable: {
            "names that are none": _fields(extensions=(encode_extension("2.5.29.17", b"\x04\x01x"),)),
            "bytes behind it": _fields(trailing=b"\0\0"),
            "half of it": _der(lambda der: der[: len(der) // 2]),
            "no DER": lambda: encode_pem(b"garbage " * 40),
            "DER of no length": lambda: encode_pem(b"\x30\x80\0\0"),
            "DER of a huge length": lambda: encode_pem(b"\x30\x84\xff\xff\xff\xff"),
            "DER 5000 deep": lambda: encode_pem(b"\x30\x80" * 5000),
        },
    }
    for reason, pems in odd.items():
        yield from _cases("deny", reason, pems)
    for reason, pems in refused.items():
        yield from _cases("deny", reason, pems, api=True)


def _odd_pem() -> Iterator[CsrCase]:
    one = "not exactly one PEM block"

    def second() -> bytes:
        return encode_pem(RequestFields(sans=(encode_dns_name("db-1"), encode_ip("10.0.0.9"))).sign())

    pems = {
        "another request behind it": _pem(lambda pem: pem + second()),
        "another request before it": _pem(lambda pem: second() + pem),
        "words before it": _pem(lambda pem: b"my request\n" + pem),
        "words behind it": _pem(lambda pem: pem + b"thank you\n"),
        "a header": _pem(lambda pem: pem.replace(b"-----\n", b"-----\nName: x\n\n", 1)),
        "a broken block before it": _pem(lambda pem: pem[:80] + b"\n" + pem),
    }
    refused = {
        "no PEM": lambda: b"please",
        "DER without PEM": lambda: RequestFields(sans=OWN).sign(),
        "a certificate's label": _labelled("CERTIFICATE"),
        "the old label": _labelled("NEW CERTIFICATE REQUEST"),
        "no base64": _pem(lambda pem: pem.replace(b"\nMII", b"\n!!!", 1)),
        "no end": _pem(lambda pem: pem.split(b"-----END")[0]),
        "bytes that are no text": lambda: bytes(range(256)) * 8,
    }
    yield from _cases("deny", one, pems)
    yield from _cases("deny", one, refused, api=True)
    yield from _cases("deny", "it is empty", {"nothing at all": lambda: b""}, api=True)
    padded = _pem(lambda pem: pem.replace(b"\nMII", b"\nM==", 1))
    yield from _cases("deny", "can be read", {"padding in the middle": padded}, api=True)


def _who_and_what_for() -> Iterator[CsrCase]:
    case = partial(_case, pem=_asks(*OWN))
    lack, have, short = "its usages lack", "its usages have", "is less than 3600"
    yield case("deny", "no digital signature", lack, usages=("server auth",))
    yield case("deny", "for a client", lack, usages=("digital signature", "client auth"))
    yield case("deny", "for a server and a client", have, usages=(*SERVING, "client auth"))
    yield case("deny", "to sign certificates, by usage", have, usages=(*SERVING, "cert sign"))
    yield case("deny", "for any use", lack, usages=("any",))
    yield case("deny", "for nothing", lack, usages=(), api=True)
    yield case("deny", "a use that is none", have, usages=(*SERVING, "everything"), api=True)
    yield case("deny", "too short a time", short, expiration_seconds=600)
    yield case("deny", "too long a time", "is more than 2592000", expiration_seconds=2**31 - 1)
    yield case("deny", "a time below zero", short, expiration_seconds=-1, api=True)
    yield case("deny", "as db-1", "its common name is", username="system:node:db-1", api=None)
    ignored = partial(case, "ignore", api=None)
    yield ignored("nobody of the nodes", "is not in group", groups=("system:authenticated",))
    yield ignored("a group that looks alike", "is not in group", groups=("system:node",))
    yield ignored("a user that is no node", "not ours", username="jane")
    yield ignored("a node without a name", "not ours", username="system:node:")
    yield ignored("a node in capitals", "no possible Node", username="system:node:Web-1")
    yield ignored("a node with a line break", "no possible", username="system:node:a\nb")
    client = "kubernetes.io/kube-apiserver-client"
    yield case("ignore", "for a client of the API server", "not ours", signer=client)
    yield case("ignore", "of another signer", "not ours", signer="example.com/serving")


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
