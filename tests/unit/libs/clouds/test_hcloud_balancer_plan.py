"""Changes, made one by one, lead every balancer to the desired one, and the API accepts each of them."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from libs.clouds.balancers import Balancer, BalancerRequest, Ingress, InvalidField, Owner, Port, Target
from libs.clouds.hcloud.balancers.annotations import Annotations
from libs.clouds.hcloud.balancers.desired import BalancerOptions, DesiredBalancer, read_request
from libs.clouds.hcloud.balancers.documents import (
    Algorithm,
    LoadBalancer,
    LoadBalancerTarget,
    LoadBalancerType,
    PrivateNet,
    Protection,
    PublicAddress,
    PublicNet,
    Resource,
    Service,
    TargetIp,
    TargetSelector,
)
from libs.clouds.hcloud.balancers.plan import (
    Change,
    build_balancer,
    build_creation,
    build_ingress,
    find_added_target,
    plan_adoption,
    plan_changes,
    plan_hand_back,
    plan_release,
)
from libs.clouds.instances import Unanswered

NETWORK = 7
OWNER = Owner(cluster_uid="cluster-1", service_uid="service-1", account="prod")
TYPES = {
    name: LoadBalancerType(name, services, targets)
    for name, services, targets in (("lb11", 2, 3), ("lb21", 4, 6))
}
LABELS = {
    "talos-ccm/service-uid": "service-1",
    "talos-ccm/cluster": "cluster-1",
    "talos-ccm/account": "prod",
}
WITHOUT_ACCOUNT = {name: text for name, text in LABELS.items() if name != "talos-ccm/account"}


class SimBalancer:
    """The rules of the API for the changes of one balancer; each breach is an AssertionError."""

    def __init__(self, observed: LoadBalancer) -> None:
        self.observed = observed

    def apply(self, change: Change) -> None:
        body = msgspec.json.decode(change.body)
        fields = getattr(self, change.action)(body)
        self.observed = msgspec.structs.replace(self.observed, **fields)

    def remove_target(self, body: dict[str, Any]) -> dict[str, Any]:
        removed = msgspec.convert(body, LoadBalancerTarget)
        left = [each for each in self.observed.targets if not refer_to_the_same(each, removed)]
        assert len(left) == len(self.observed.targets) - 1
        return {"targets": tuple(left)}

    def add_target(self, body: dict[str, Any]) -> dict[str, Any]:
        added = msgspec.convert(body, LoadBalancerTarget)
        assert not any(refer_to_the_same(each, added) for each in self.observed.targets)
        assert len(self.observed.targets) < self.observed.load_balancer_type.max_targets
        if added.use_private_ip:
            assert self.observed.private_net
        elif added.type == "server":
            assert self.observed.public_net.enabled
        return {"targets": (*self.observed.targets, added)}

    def detach_from_network(self, body: dict[str, Any]) -> dict[str, Any]:
        left = tuple(each for each in self.observed.private_net if each.network != body["network"])
        assert len(left) < len(self.observed.private_net)
        public = tuple(each for each in self.observed.targets if not each.use_private_ip)
        return {"private_net": left, "targets": public}

    def attach_to_network(self, body: dict[str, Any]) -> dict[str, Any]:
        assert not self.observed.private_net
        return {"private_net": (PrivateNet(body["network"], body.get("ip", "10.0.1.2")),)}

    def enable_public_interface(self, body: dict[str, Any]) -> dict[str, Any]:
        assert not self.observed.public_net.enabled
        return self._set_public(True)

    def disable_public_interface(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self.observed.public_net.enabled
        assert self.observed.private_net
        assert all(each.use_private_ip for each in self.observed.targets if each.type == "server")
        return self._set_public(False)

    def change_type(self, body: dict[str, Any]) -> dict[str, Any]:
        new = TYPES[body["load_balancer_type"]]
        assert len(self.observed.targets) <= new.max_targets
        assert len(self.observed.services) <= new.max_services
        return {"load_balancer_type": new}

    def change_algorithm(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"algorithm": Algorithm(body["type"])}

    def change_dns_ptr(self, body: dict[str, Any]) -> dict[str, Any]:
        public = self.observed.public_net
        [family] = [each for each in ("ipv4", "ipv6") if getattr(public, each).ip == body["ip"]]
        return {"public_net": msgspec.structs.replace(public, **{family: PublicAddress(**body)})}

    def update(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body.keys() <= {"name", "labels"}
        return body

    def delete_service(self, body: dict[str, Any]) -> dict[str, Any]:
        left = tuple(each for each in self.observed.services if each.listen_port != body["listen_port"])
        assert len(left) == len(self.observed.services) - 1
        return {"services": left}

    def update_service(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            **self.delete_service(body),
            "services": (*self.delete_service(body)["services"], as_stored(body)),
        }

    def add_service(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["listen_port"] not in {each.listen_port for each in self.observed.services}
        assert len(self.observed.services) < self.observed.load_balancer_type.max_services
        return {"services": (*self.observed.services, as_stored(body))}

    def _set_public(self, enabled: bool) -> dict[str, Any]:
        return {"public_net": msgspec.structs.replace(self.observed.public_net, enabled=enabled)}


def refer_to_the_same(one: LoadBalancerTarget, other: LoadBalancerTarget) -> bool:
    return (one.server, one.ip, one.label_selector) == (other.server, other.ip, other.label_selector)


def as_stored(body: dict[str, Any]) -> Service:
    """The API stores options of every protocol, whatever the protocol is."""
    http = {"cookie_name": "", "cookie_lifetime": 0, "timeout_idle": 60, "certificates": []}
    stored = {"http": {**http, **body.get("http", {})}}
    check = body["health_check"]
    check_http = check.get("http", {"path": "/"})
    codes = check_http.get("status_codes", ())[::-1]
    check_http = {**check_http, "domain": check_http.get("domain") or "", "status_codes": codes}
    return msgspec.convert({**body, **stored, "health_check": {**check, "http": check_http}}, Service)


def a_balancer(**fields: Any) -> LoadBalancer:
    defaults: dict[str, Any] = {
        "id": 1,
        "name": "a",
        "created": datetime(2026, 1, 2, tzinfo=UTC),
        "labels": LABELS,
        "protection": Protection(delete=False),
        "load_balancer_type": TYPES["lb11"],
        "algorithm": Algorithm("round_robin"),
        "public_net": PublicNet(True, PublicAddress("192.0.2.1"), PublicAddress("2001:db8::1")),
        "private_net": (),
        "services": (),
        "targets": (),
    }
    return LoadBalancer(**{**defaults, **fields})


def built(observed: LoadBalancer) -> Balancer:
    balancer = build_balancer(observed)
    assert isinstance(balancer, Balancer)
    return balancer


def a_desired(ports: dict[int, int], network: int | None = NETWORK, **annotations: Any) -> DesiredBalancer:
    keys = {
        f"load-balancer.hetzner.cloud/{name.replace('_', '-')}": text for name, text in annotations.items()
    }
    request = BalancerRequest(
        namespace="default",
        name="web",
        uid="service-1",
        annotations=keys,
        ports=tuple(
            Port(name=str(port), protocol="TCP", port=port, node_port=node) for port, node in ports.items()
        ),
    )
    options = BalancerOptions(network=network, defaults=Annotations(location="fsn1"))
    parsed = read_request(request, options)
    assert parsed.invalid == ()
    return parsed.desired


PORTS = st.dictionaries(
    st.sampled_from([80, 443, 8080]), st.sampled_from([30080, 30443]), min_size=1, max_size=2
)
TARGETS = st.lists(
    st.sampled_from(
        [*(Target(instance_id=str(number)) for number in range(1, 6)), Target(address="192.0.2.9")]
    ),
    unique=True,
    max_size=3,
).map(tuple)


@st.composite
def desired_balancers(draw: st.DrawFn) -> DesiredBalancer:
    options: dict[str, list[dict[str, str]]] = {
        "network": [
            {},
            {"use_private_ip": "true"},
            {"use_private_ip": "true", "disable_public_network": "true"},
            {"private_ipv4": "10.0.1.9", "use_private_ip": "true"},
            {"private_subnet_ip_range": "10.0.1.0/24"},
            {"disable_public_network": "false"},
        ],
        "service": [
            {},
            {"protocol": "http", "http_sticky_sessions": "true"},
            {"protocol": "https", "http_certificates": "9,7", "http_timeout_idle": "60s"},
            {"protocol": "http", "health_check_http_domain": "a.example"},
            {"uses_proxyprotocol": "true", "health_check_interval": "5s"},
        ],
        "rest": [
            {},
            {"algorithm_type": "least_connections"},
            {"name": "edge", "ipv6_rdns": "edge.example"},
            {"type": "lb21"},
            {"type": "lb11"},
        ],
    }
    annotations = {
        key: text for choice in options.values() for key, text in draw(st.sampled_from(choice)).items()
    }
    network = (
        None
        if not annotations.keys() & {"use_private_ip", "private_subnet_ip_range"} and draw(st.booleans())
        else NETWORK
    )
    return a_desired(draw(PORTS), network, **annotations)


@st.composite
def observed_balancers(draw: st.DrawFn) -> LoadBalancer:
    """Any balancer that the API allows, as another client may have left it."""
    network = draw(st.sampled_from([None, NETWORK, 8]))
    is_public = network is None or draw(st.booleans())
    may_be_private = (
        st.just(network is not None)
        if not is_public
        else st.booleans().map(lambda it: it and network is not None)
    )
    kinds = {
        **{
            f"server-{number}": LoadBalancerTarget(type="server", server=Resource(number))
            for number in range(1, 6)
        },
        "ip": LoadBalancerTarget(type="ip", ip=TargetIp("192.0.2.9")),
        "selector": LoadBalancerTarget(type="label_selector", label_selector=TargetSelector("a=b")),
    }
    names = draw(st.lists(st.sampled_from(sorted(kinds)), unique=True, max_size=3))
    targets = tuple(
        kinds[name]
        if name == "ip"
        else msgspec.structs.replace(kinds[name], use_private_ip=draw(may_be_private))
        for name in names
    )
    services = draw(desired_balancers()).services if draw(st.booleans()) else ()
    return a_balancer(
        name=draw(st.sampled_from(["a", "edge"])),
        algorithm=Algorithm(draw(st.sampled_from(["round_robin", "least_connections"]))),
        load_balancer_type=TYPES[draw(st.sampled_from(["lb11", "lb21"]))],
        public_net=PublicNet(is_public, PublicAddress("192.0.2.1"), PublicAddress("2001:db8::1")),
        private_net=()
        if network is None
        else (PrivateNet(network, draw(st.sampled_from(["10.0.1.2", "10.0.1.9"]))),),
        services=tuple(as_stored(msgspec.to_builtins(service)) for service in services),
        targets=targets,
    )


def is_reachable(desired: DesiredBalancer, observed: LoadBalancer) -> bool:
    """False for public targets of a balancer whose public interface was disabled and may stay so."""
    values = desired.annotations
    return values.use_private_ip or observed.public_net.enabled or values.disable_public_network is False


@given(desired_balancers(), TARGETS, observed_balancers())
def test_changes_one_by_one_end_in_the_desired_balancer(
    desired: DesiredBalancer, targets: tuple[Target, ...], observed: LoadBalancer
):
    assume(is_reachable(desired, observed))
    sim = SimBalancer(observed)
    bound = 2 + len(observed.targets) + 2 * 3 + 2 * 3 + len(observed.services) + 2 + 7
    for _ in range(bound):
        changes = plan_changes(desired, targets, built(sim.observed))
        if not changes:
            break
        for other in changes[1:-1]:  # at last, there may be one that the API explains
            SimBalancer(sim.observed).apply(other)
        sim.apply(changes[0])
    else:
        raise AssertionError("changes do not end")
    assert_is(sim.observed, desired, targets)


def assert_is(observed: LoadBalancer, desired: DesiredBalancer, targets: tuple[Target, ...]) -> None:
    values = desired.annotations
    assert sorted(built(observed).targets) == sorted(targets)
    servers = [each for each in observed.targets if each.type == "server"]
    assert {each.use_private_ip for each in servers} <= {values.use_private_ip}
    assert {each.listen_port: each.destination_port for each in observed.services} == {
        each.listen_port: each.destination_port for each in desired.services
    }
    for service in observed.services:
        [wanted] = [each for each in desired.services if each.listen_port == service.listen_port]
        assert (service.protocol, service.proxyprotocol) == (wanted.protocol, wanted.proxyprotocol)
        assert service.health_check is not None
        assert wanted.health_check is not None
        assert service.health_check.interval == wanted.health_check.interval
        if wanted.http is not None and service.http is not None:
            assert service.http.certificates == wanted.http.certificates
            assert service.http.sticky_sessions == wanted.http.sticky_sessions
    assert observed.algorithm.type == values.algorithm_type
    assert values.name in {None, observed.name}
    assert values.ipv6_rdns in {None, observed.public_net.ipv6.dns_ptr}
    assert values.type in {None, observed.load_balancer_type.name}
    assert observed.public_net.enabled or values.disable_public_network is not False
    assert not (observed.public_net.enabled and values.disable_public_network)
    if desired.network is not None:
        [attached] = observed.private_net
        assert attached.network == desired.network
        assert values.private_ipv4 in {None, attached.ip}


@given(observed_balancers())
def test_a_release_ends_without_our_targets_ports_and_tags(observed: LoadBalancer):
    labels = {**LABELS, "team": "edge"}
    sim = SimBalancer(msgspec.structs.replace(observed, labels=labels))
    kept = [each for each in observed.targets if each.type == "label_selector"]
    while changes := plan_release(built(sim.observed)):
        assert built(sim.observed).owner == OWNER  # the tags go last
        sim.apply(changes[0])
    assert (list(sim.observed.targets), sim.observed.services) == (kept, ())
    assert sim.observed.labels == {"team": "edge"}


def actions_of(desired: DesiredBalancer, targets: tuple[Target, ...], observed: LoadBalancer) -> list[str]:
    return [change.action for change in plan_changes(desired, targets, built(observed))]


SERVER = Target(instance_id="1")


def test_all_possible_changes_are_planned_and_removals_of_targets_are_the_first():
    desired = a_desired({80: 30080}, type="lb21", algorithm_type="least_connections", name="edge")
    gone = LoadBalancerTarget(type="server", server=Resource(9))
    assert actions_of(desired, (SERVER,), a_balancer(targets=(gone,))) == [
        "remove_target",
        "add_target",
        "attach_to_network",
        "change_type",
        "change_algorithm",
        "update",
        "add_service",
    ]


@pytest.mark.parametrize("target", [SERVER, Target(address="203.0.113.9")])
def test_an_addition_names_its_target_and_no_other_change_does(target: Target):
    changes = plan_changes(a_desired({80: 30080}), (target,), built(a_balancer()))
    named = {change.action: find_added_target(change) for change in changes}
    assert named.pop("add_target") == target
    assert set(named.values()) == {None}


def test_a_target_beyond_the_limit_is_the_last_change():
    targets = tuple(Target(instance_id=str(number)) for number in range(1, 6))
    full = a_balancer(targets=tuple(LoadBalancerTarget(type="server", server=Resource(n)) for n in (1, 2, 3)))
    [*_, last] = plan_changes(a_desired({80: 30080}), targets, built(full))
    assert str(last) == 'add_target {"server":{"id":4},"type":"server"}'


@pytest.mark.parametrize(
    ("part", "left_out"),
    [
        ("services", {"update_service", "add_service"}),
        ("ports", {"delete_service"}),
        ("type", {"change_type"}),
        ("algorithm", {"change_algorithm"}),
        ("name", {"update"}),
        ("reverse_dns", {"change_dns_ptr"}),
        ("network", {"attach_to_network"}),
        ("new_targets", {"add_target"}),
        ("public_interface", {"enable_public_interface"}),
    ],
)
def test_a_frozen_part_stays_as_it_is_and_the_rest_changes(part: Any, left_out: set[str]):
    desired = a_desired(
        {80: 30080, 443: 30443},
        type="lb11",
        algorithm_type="least_connections",
        name="edge",
        ipv4_rdns="edge.example",
        disable_public_network="false",
        uses_proxyprotocol="true",
    )
    old = a_desired({80: 30080, 8080: 30443})
    observed = a_balancer(
        load_balancer_type=TYPES["lb21"],
        services=old.services,
        targets=(LoadBalancerTarget(type="server", server=Resource(9)),),
        public_net=PublicNet(False, PublicAddress("192.0.2.1"), PublicAddress()),
    )
    frozen = msgspec.structs.replace(desired, frozen=frozenset({part}))
    everything = set(actions_of(desired, (SERVER,), observed))
    assert everything - set(actions_of(frozen, (SERVER,), observed)) == left_out


def test_no_port_is_opened_while_a_field_is_invalid_but_one_closes():
    desired = msgspec.structs.replace(a_desired({80: 30080}, network=None), may_open_ports=False)
    old = a_desired({8080: 30443})
    assert actions_of(desired, (), a_balancer(services=old.services)) == ["delete_service"]


def test_targets_change_their_network_one_after_the_other():
    public = tuple(LoadBalancerTarget(type="server", server=Resource(number)) for number in (1, 2))
    sim = SimBalancer(a_balancer(targets=public, private_net=(PrivateNet(NETWORK, "10.0.1.2"),)))
    desired = msgspec.structs.replace(a_desired({80: 1}, use_private_ip="true"), services=())
    numbers = []
    while changes := plan_changes(desired, (SERVER, Target(instance_id="2")), built(sim.observed)):
        sim.apply(changes[0])
        numbers.append(len(sim.observed.targets))
    assert numbers == [1, 2, 1, 2]


def test_no_target_leaves_for_another_network_while_one_is_missing():
    public = LoadBalancerTarget(type="server", server=Resource(1))
    observed = a_balancer(targets=(public,), private_net=(PrivateNet(NETWORK, "10.0.1.2"),))
    desired = msgspec.structs.replace(a_desired({80: 1}, use_private_ip="true"), services=())
    assert actions_of(desired, (SERVER, Target(instance_id="2")), observed) == ["add_target"]


def test_an_internal_balancer_has_no_target_while_its_public_interface_is_enabled():
    desired = a_desired({80: 30080}, use_private_ip="true", disable_public_network="true")
    sim, actions = SimBalancer(a_balancer(services=desired.services)), []
    while changes := plan_changes(desired, (SERVER,), built(sim.observed)):
        sim.apply(changes[0])
        actions.append(changes[0].action)
    assert actions == ["attach_to_network", "disable_public_interface", "add_target"]


def test_certificates_outlive_their_balancer():
    desired = a_desired({80: 30080, 443: 30443}, protocol="https", http_certificates="9,7", network=None)
    balancer = built(a_balancer(services=desired.services))
    assert balancer.kept_objects == ("certificate 7", "certificate 9")


def test_unresolved_certificates_change_no_service():
    desired = a_desired({80: 30080}, protocol="https", http_certificates="www", network=None)
    old = a_desired({80: 30443})
    assert actions_of(desired, (), a_balancer(services=old.services)) == []


def test_a_creation_has_tags_ports_and_the_targets_that_may_be_there_from_the_start():
    targets = tuple(Target(instance_id=str(number)) for number in range(1, 31))
    created = build_creation(a_desired({80: 30080}), targets, OWNER)
    assert created["labels"] == LABELS
    assert (created["name"], created["load_balancer_type"], created["location"]) == (
        "aservice1",
        "lb11",
        "fsn1",
    )
    assert (created["network"], created["public_interface"], len(created["targets"])) == (NETWORK, True, 25)
    assert [each.listen_port for each in created["services"]] == [80]
    chosen = a_desired(
        {80: 30080}, use_private_ip="true", private_ipv4="10.0.1.9", disable_public_network="true"
    )
    created = build_creation(chosen, targets, OWNER)
    assert ("network" in created, created["public_interface"], created["targets"]) == (False, True, ())


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, ("192.0.2.1", "2001:db8::1", "10.0.1.2")),
        ({"ipv6_disabled": "true"}, ("192.0.2.1", "10.0.1.2")),
        ({"disable_private_ingress": "true"}, ("192.0.2.1", "2001:db8::1")),
        ({"disable_public_network": "true", "use_private_ip": "true"}, ("10.0.1.2",)),
    ],
)
def test_the_status_has_the_addresses_that_are_asked_for(
    annotations: dict[str, Any], expected: tuple[str, ...]
):
    networks = (PrivateNet(8, "10.8.0.2"), PrivateNet(NETWORK, "10.0.1.2"))  # the first will be detached
    balancer = built(a_balancer(private_net=networks))
    plain = build_ingress(a_desired({80: 1}, **annotations), balancer)
    assert plain == tuple(Ingress(ip=ip) for ip in expected)
    proxied = build_ingress(a_desired({80: 1}, uses_proxyprotocol="true", **annotations), balancer)
    assert proxied == tuple(Ingress(ip=ip, is_proxy=True) for ip in expected)


def test_a_hostname_takes_the_place_of_the_addresses_and_an_invalid_field_keeps_the_status():
    balancer = built(a_balancer())
    named = a_desired({80: 1}, hostname="www.example.com", uses_proxyprotocol="true")
    assert build_ingress(named, balancer) == (Ingress(hostname="www.example.com"),)
    unreadable = msgspec.structs.replace(named, frozen=frozenset({"status"}))
    assert build_ingress(unreadable, balancer) is None


@pytest.mark.parametrize(
    ("labels", "owner", "is_foreign"),
    [
        (LABELS, OWNER, False),
        ({"talos-ccm/service-uid": "service-1"}, None, True),
        (WITHOUT_ACCOUNT, None, True),
        ({**LABELS, "talos-ccm/account": "other"}, msgspec.structs.replace(OWNER, account="other"), False),
        ({}, None, False),
        ({**LABELS, "hcloud-ccm/service-uid": "service-1"}, OWNER, True),
    ],
)
def test_the_owner_is_in_three_labels(labels: dict[str, str], owner: Owner | None, is_foreign: bool):
    balancer = built(a_balancer(labels=labels, protection=Protection(delete=True)))
    assert (balancer.owner, balancer.has_foreign_tags, balancer.is_protected) == (owner, is_foreign, True)


def labels_of(change: Change | InvalidField) -> dict[str, str]:
    assert isinstance(change, Change)
    assert change.action == "update"
    found: dict[str, str] = msgspec.json.decode(change.body)["labels"]
    return found


def test_a_prepared_balancer_is_tagged_as_one_that_stays_and_keeps_the_labels_of_others():
    desired = a_desired({80: 30080})
    empty = a_balancer(labels={"team": "edge"}, services=desired.services)
    labels = labels_of(plan_adoption(desired, (SERVER,), built(empty), OWNER))
    assert labels == {"team": "edge", "talos-ccm/prepared": "true"} | LABELS
    tagged = built(msgspec.structs.replace(empty, labels=labels))
    assert (tagged.owner, tagged.is_protected, tagged.has_foreign_tags) == (OWNER, True, False)
    *_, release = plan_release(tagged)
    assert labels_of(release) == {"team": "edge"}


@pytest.mark.parametrize(
    "used",
    [
        {"services": a_desired({443: 1}).services},
        {"targets": (LoadBalancerTarget(type="ip", ip=TargetIp("192.0.2.9")),)},
    ],
)
def test_a_prepared_balancer_with_ports_or_targets_of_others_is_not_used(used: dict[str, Any]):
    step = plan_adoption(a_desired({80: 30080}), (SERVER,), built(a_balancer(labels={}, **used)), OWNER)
    assert isinstance(step, InvalidField)


def test_a_balancer_of_hcloud_ccm_is_taken_over_and_handed_back():
    native = {"hcloud-ccm/service-uid": "service-1", "team": "edge"}
    used = a_balancer(labels=native, services=a_desired({443: 1}).services)
    assert built(used).native_uid == "service-1"
    taken = labels_of(plan_adoption(a_desired({80: 30080}), (SERVER,), built(used), OWNER))
    assert taken == {"team": "edge"} | LABELS
    ours = msgspec.structs.replace(used, labels=taken)
    assert labels_of(plan_hand_back(built(ours), "service-1")) == native


def test_a_balancer_of_hcloud_ccm_is_not_taken_over_if_dedicated_servers_would_lose_traffic():
    addresses = ("192.0.2.8", "192.0.2.9")
    native = a_balancer(
        labels={"hcloud-ccm/service-uid": "service-1"},
        targets=tuple(LoadBalancerTarget(type="ip", ip=TargetIp(each)) for each in addresses),
    )
    dedicated = [Target(address=each) for each in addresses]
    step = plan_adoption(a_desired({80: 30080}), (SERVER, dedicated[0]), built(native), OWNER)
    assert isinstance(step, InvalidField)
    assert step.reason.endswith("remove 192.0.2.9")
    taken = plan_adoption(a_desired({80: 30080}), (SERVER, *dedicated), built(native), OWNER)
    assert labels_of(taken) == LABELS


def test_a_balancer_of_hcloud_ccm_is_not_taken_over_while_it_has_targets_by_label():
    selector = LoadBalancerTarget(type="label_selector", label_selector=TargetSelector("pool=web"))
    native = a_balancer(labels={"hcloud-ccm/service-uid": "service-1"}, targets=(selector,))
    step = plan_adoption(a_desired({80: 30080}), (SERVER,), built(native), OWNER)
    assert isinstance(step, InvalidField)
    assert step.reason.endswith("remove pool=web")


def test_a_target_without_its_reference_is_no_answer():
    assert isinstance(build_balancer(a_balancer(targets=(LoadBalancerTarget(type="server"),))), Unanswered)
