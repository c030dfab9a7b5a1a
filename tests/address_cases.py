"""Every case of how a Node's addresses come about."""

import msgspec

from libs.common.contract.machine import AddressStatus, MachineFacts
from tests.builders import make_facts


class AddressCase(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet and the machine say, and the addresses that follow, as "Type=address" in order."""

    name: str
    provided: str = "10.0.0.5"
    platform: str = "metal"
    links: tuple[AddressStatus, ...] = ()  # beside the loopback and the node's own addresses
    prefer_ipv6: bool = False
    expected: tuple[str, ...]

    def facts(self) -> MachineFacts:
        """What the machine says; the node's own addresses are on eth0."""
        own = (make_link_address("eth0", ip.strip()) for ip in self.provided.split(","))
        return make_facts(
            platform=self.platform,
            node_ip=self.provided.split(",", maxsplit=1)[0].strip(),
            addresses=(
                make_link_address("lo", "127.0.0.1", 8),
                make_link_address("lo", "::1", 128),
                *own,
                *self.links,
            ),
        )


def make_link_address(link: str, ip: str, length: int = 0, flags: int = 128) -> AddressStatus:
    """An address on a link; permanent unless told otherwise."""
    return AddressStatus(address=f"{ip}/{length or (64 if ':' in ip else 24)}", link=link, flags=flags)


def on_link(link: str, *ips: str) -> tuple[AddressStatus, ...]:
    """Permanent addresses on one link."""
    return tuple(make_link_address(link, ip) for ip in ips)


def make_external_address(ip: str) -> AddressStatus:
    """An address that the cloud's metadata name."""
    return AddressStatus(address=f"{ip}/{128 if ':' in ip else 32}", link="external")


TEMPORARY, AUTOCONFIGURED = 1, 256
V4, V6, NAME = "InternalIP=10.0.0.5", "InternalIP=2001:db8::5", "Hostname=web-1"

CASES = (
    AddressCase(name="a private address alone", expected=(V4, NAME)),
    AddressCase(name="dual stack", provided="10.0.0.5,2001:db8::5", expected=(V4, V6, NAME)),
    AddressCase(
        name="dual stack keeps the order of the annotation",
        provided="2001:db8::5,10.0.0.5",
        expected=(V6, V4, NAME),
    ),
    AddressCase(
        name="preferIPv6 does not overrule the order of the annotation",
        provided="10.0.0.5,2001:db8::5",
        prefer_ipv6=True,
        expected=(V4, V6, NAME),
    ),
    AddressCase(name="IPv6 alone", provided="2001:db8::5", expected=(V6, NAME)),
    AddressCase(
        name="a public address on a link is discovered",
        links=on_link("eth1", "203.0.113.7"),
        expected=(V4, "ExternalIP=203.0.113.7", NAME),
    ),
    AddressCase(
        name="discovery takes one of each family, IPv4 first",
        links=(*on_link("eth1", "2001:db8:1::7", "203.0.113.7"), *on_link("eth2", "203.0.113.8")),
        expected=(V4, "ExternalIP=203.0.113.7", "ExternalIP=2001:db8:1::7", NAME),
    ),
    AddressCase(
        name="preferIPv6 puts the IPv6 ExternalIP first",
        links=on_link("eth1", "203.0.113.7", "2001:db8:1::7"),
        prefer_ipv6=True,
        expected=(V4, "ExternalIP=2001:db8:1::7", "ExternalIP=203.0.113.7", NAME),
    ),
    AddressCase(
        name="the last permanent IPv6 address goes before the others",
        links=(
            make_link_address("eth1", "2001:db8:1::1", flags=TEMPORARY),
            make_link_address("eth1", "2001:db8:1::2"),
            make_link_address("eth1", "2001:db8:1::3", flags=AUTOCONFIGURED),
            make_link_address("eth1", "2001:db8:1::4", flags=128 | AUTOCONFIGURED),
            make_link_address("eth1", "2001:db8:1::5", flags=TEMPORARY),
        ),
        expected=(V4, "ExternalIP=2001:db8:1::4", NAME),
    ),
    AddressCase(
        name="without a permanent IPv6 address the first one counts",
        links=(
            make_link_address("eth1", "2001:db8:1::1", flags=TEMPORARY),
            make_link_address("eth1", "2001:db8:1::2", flags=AUTOCONFIGURED),
        ),
        expected=(V4, "ExternalIP=2001:db8:1::1", NAME),
    ),
    AddressCase(
        name="private, shared and link-local addresses are no external ones and displace none",
        links=(
            *on_link("eth1", "192.168.7.7", "fd00::7", "fe80::7", "169.254.7.7", "100.64.0.7"),
            *on_link("tailscale0", "100.127.255.254", "fd7a:115c:a1e0::7"),
            *on_link("eth2", "203.0.113.7"),
        ),
        expected=(V4, "ExternalIP=203.0.113.7", NAME),
    ),
    AddressCase(
        name="inner links are not looked at",
        links=tuple(
            make_link_address(link, f"203.0.113.{number}")
            for number, link in enumerate(
                (
                    "kubespan",
                    "siderolink",
                    "lo",
                    "cilium_host",
                    "dummy0",
                    "dummy",
                    "kube-ipvs0",
                    "nodelocaldns",
                )
            )
        ),
        expected=(V4, NAME),
    ),
    AddressCase(
        name="the node's own public address is not an external one too",
        provided="203.0.113.5,2001:db8::5",
        expected=("InternalIP=203.0.113.5", V6, NAME),
    ),
    AddressCase(
        name="discovery sees what the cloud published where it discovers",
        platform="openstack",
        links=(make_external_address("198.51.100.7"),),
        expected=(V4, "ExternalIP=198.51.100.7", NAME),
    ),
    *(
        AddressCase(
            name=f"{platform} discovers",
            platform=platform,
            links=on_link("eth1", "203.0.113.7"),
            expected=(V4, "ExternalIP=203.0.113.7", NAME),
        )
        for platform in ("nocloud", "openstack", "oracle")
    ),
    AddressCase(
        name="on a cloud only what it publishes is external",
        platform="hcloud",
        links=(
            make_link_address("eth1", "203.0.113.7"),
            make_external_address("198.51.100.7"),
            make_external_address("2001:db8:2::7"),
        ),
        expected=(V4, "ExternalIP=198.51.100.7", "ExternalIP=2001:db8:2::7", NAME),
    ),
    AddressCase(
        name="a cloud that publishes nothing gives no ExternalIP",
        platform="gcp",
        links=on_link("eth1", "203.0.113.7"),
        expected=(V4, NAME),
    ),
    AddressCase(
        name="what the cloud publishes is not judged",
        platform="aws",
        links=(make_external_address("192.168.9.9"), make_external_address("198.51.100.7")),
        expected=(V4, "ExternalIP=192.168.9.9", NAME),
    ),
    AddressCase(
        name="preferIPv6 orders published addresses",
        platform="aws",
        links=(make_external_address("198.51.100.7"), make_external_address("2001:db8:2::7")),
        prefer_ipv6=True,
        expected=(V4, "ExternalIP=2001:db8:2::7", "ExternalIP=198.51.100.7", NAME),
    ),
    AddressCase(
        name="a kubelet on its public address has it as internal alone and keeps other external ones",
        provided="198.51.100.7",
        platform="hcloud",
        links=(make_external_address("198.51.100.7"), make_external_address("2001:db8:2::7")),
        expected=("InternalIP=198.51.100.7", "ExternalIP=2001:db8:2::7", NAME),
    ),
    AddressCase(
        name="the first published address that is no node IP counts",
        provided="198.51.100.7,2001:db8:2::7",
        platform="aws",
        links=(
            make_external_address("198.51.100.7"),
            make_external_address("198.51.100.8"),
            make_external_address("2001:db8:2::7"),
        ),
        expected=("InternalIP=198.51.100.7", "InternalIP=2001:db8:2::7", "ExternalIP=198.51.100.8", NAME),
    ),
    AddressCase(
        name="IPv4 written as IPv6 is IPv4",
        provided="::ffff:10.0.0.5",
        links=(make_link_address("eth1", "::ffff:203.0.113.7", 128),),
        expected=(V4, "ExternalIP=203.0.113.7", NAME),
    ),
    AddressCase(
        name="a zone is no part of an address",
        links=on_link("eth1", "2001:db8:1::7%eth1"),
        expected=(V4, "ExternalIP=2001:db8:1::7", NAME),
    ),
    AddressCase(
        name="what is no address is passed over",
        links=on_link("eth1", "nonsense"),
        expected=(V4, NAME),
    ),
)
