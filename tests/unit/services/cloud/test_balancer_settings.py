"""Settings of load balancers: classes, the default account, options, and rights that follow."""

from collections.abc import Mapping

import pytest

from libs.common.contract.services import CLOUD
from libs.common.settings.read_settings import SettingsError, read_settings, validate_settings
from services.cloud.balancer_settings import AccountBalancers
from services.cloud.core.balancers.balancer_record import BalancerAccount
from services.cloud.service import expand_definition
from services.cloud.settings import CloudSettings

ACCOUNTS = (
    "--cloud-account=hcloud/prod",
    "--cloud-account=hcloud/b-2",
    "--cloud-account=thalassa/t",
    "--cloud-credential-file=/etc/clouds/{account}/token",
)
ON = "--controllers=cloud-node,service-lb-controller"


def read(*arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, AccountBalancers | None]:
    """What each account has."""
    settings = read_settings([CloudSettings], (*ACCOUNTS, *arguments), environment or {}).get(CloudSettings)
    return {
        account: settings.find_balancers(provider, account)
        for provider, account in (("hcloud", "prod"), ("hcloud", "b-2"), ("thalassa", "t"))
    }


@pytest.mark.parametrize("controllers", ["cloud-node,service", "service-lb-controller", "*,service"])
def test_an_account_has_the_services_of_its_class_or_those_without_one(controllers: str):
    found = read(
        f"--controllers={controllers}",
        "--load-balancer-class=prod=example.com/lb",
        "--load-balancer-default-account=b-2",
    )
    assert found == {
        "prod": AccountBalancers(account=BalancerAccount(name="prod", load_balancer_class="example.com/lb")),
        "b-2": AccountBalancers(account=BalancerAccount(name="b-2", load_balancer_class="", is_default=True)),
        "t": None,
    }


@pytest.mark.parametrize("controllers", ["*", "cloud-node", "*,service,-service-lb-controller"])
def test_the_controller_is_off_unless_it_is_named(controllers: str):
    assert set(read(f"--controllers={controllers}", "--load-balancer-class=prod=c").values()) == {None}


def test_options_have_the_names_of_the_native_environment_and_the_flag_has_precedence():
    environment = {
        "HCLOUD_NETWORK": "4711",
        "HCLOUD_LOAD_BALANCERS_LOCATION": "fsn1",
        "HCLOUD_LOAD_BALANCERS_TYPE": "lb11",
        "HCLOUD_LOAD_BALANCERS_ENABLED": "true",
        "HCLOUD_OTHER": "x",
        "ROBOT_ENABLED": "true",
    }
    found = read(
        ON,
        "--load-balancer-class=prod=c",
        "--load-balancer-class=b-2=d",
        "--load-balancer-option=prod/HCLOUD_LOAD_BALANCERS_LOCATION=nbg1",
        "--load-balancer-option=prod/HCLOUD_LOAD_BALANCERS_TYPE=lb21",
        environment=environment,
    )
    options = {name: each.options for name, each in found.items() if each is not None}
    native = {
        "HCLOUD_NETWORK": "4711",
        "HCLOUD_LOAD_BALANCERS_LOCATION": "fsn1",
        "HCLOUD_LOAD_BALANCERS_TYPE": "lb11",
        "ROBOT_ENABLED": "true",
    }
    changed = {"HCLOUD_LOAD_BALANCERS_LOCATION": "nbg1", "HCLOUD_LOAD_BALANCERS_TYPE": "lb21"}
    assert options == {"prod": native | changed, "b-2": native}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["class=prod"], "--load-balancer-class=prod=: the form is account=class"),
        (["class=prod=bad class"], "the form is account=class"),
        (["class=prod=a/b/c"], "the form is account=class"),
        (["class=other=c"], "--load-balancer-class=other=c: the form is"),
        (["class=prod=c", "class=b-2=c"], "--load-balancer-class: c is there twice"),
        (["class=prod=c", "class=prod=d"], "--load-balancer-class: prod is there twice"),
        (["default-account=other"], "--cloud-account has no such account"),
        (["option=prod/HCLOUD_NETWORK"], "the form is account/NAME=value"),
        (["option=HCLOUD_NETWORK=1"], "the form is account/NAME=value"),
        (["option=other/HCLOUD_NETWORK=1"], "the form is account/NAME=value"),
        (["class=prod=c", "option=prod/NETWORK=1"], "of prod: NETWORK is no option; the options are HCLOUD_"),
        (["class=prod=c", "option=prod/HCLOUD_NETWORK=0"], "of prod: HCLOUD_NETWORK is '0'"),
        (["class=prod=c", "option=prod/ROBOT_ENABLED=maybe"], "of prod: ROBOT_ENABLED"),
        (["class=t=c", "option=t/subnet=x"], "of t: subnet is no option; the options are defaultSubnet"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], problem: str):
    with pytest.raises(SettingsError) as raised:
        read(ON, *(f"--load-balancer-{each}" for each in arguments))
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        ((ON,), "service-lb-controller has no effect"),
        (("--load-balancer-class=prod=c",), "--load-balancer-class has no effect"),
        ((ON, "--load-balancer-class=prod=c"), ""),
        ((), ""),
    ],
)
def test_a_setting_without_effect_is_a_warning(arguments: tuple[str, ...], warning: str):
    parsed, mistakes = validate_settings([CloudSettings], (*ACCOUNTS, *arguments), {})
    warnings = parsed.get(CloudSettings).warnings()
    assert not mistakes
    assert [warning in each for each in warnings] == ([True] if warning else [])


_BALANCES = (ON, "--load-balancer-class=prod=c")
_ROUTES = ("--controllers=node-route-controller", "--route-network=prod=4711")


@pytest.mark.parametrize(
    ("arguments", "controllers"),
    [
        (_BALANCES, {"service-lb-controller"}),
        (_ROUTES, {"node-route-controller"}),
        (
            (*_BALANCES, *_ROUTES, f"{ON},node-route-controller"),
            {"service-lb-controller", "node-route-controller"},
        ),
    ],
    ids=["load balancers", "routes", "both"],
)
def test_only_an_account_with_controllers_has_their_rights_and_a_lease_of_its_own(
    arguments: tuple[str, ...], controllers: set[str]
):
    arguments = (*ACCOUNTS, *arguments)
    settings = read_settings([CloudSettings], arguments, {}).get(CloudSettings)
    rules = {run.spec.service: run.spec.policy_rules for run in expand_definition(settings)}
    assert (rules["cloud-b-2"], rules["cloud-t"]) == ((), ())
    prod = rules["cloud-prod"]
    assert {(rule.group, rule.resource, rule.verbs) for rule in prod} == {
        (rule.group, rule.resource, rule.verbs)
        for rule in CLOUD.policy_rules
        if controllers.intersection(rule.controllers)
    }
    names = {name for rule in prod if rule.resource == "leases" for name in rule.resource_names}
    assert names == {"talos-ccm-cloud-prod"}


_ROUTED = "--controllers=cloud-node,node-route-controller"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((_ROUTED, "--route-network=other=1"), "--route-network=other=1: the form is account=network"),
        ((_ROUTED, "--route-network=prod="), "--route-network=prod=: the form is account=network"),
        ((_ROUTED, "--route-network=prod"), "--route-network=prod: the form is account=network"),
        ((_ROUTED, "--route-network=t=1"), "only accounts of hcloud and openstack have routes: remove it"),
    ],
)
def test_an_invalid_network_of_routes_is_named(arguments: tuple[str, ...], problem: str):
    _, mistakes = validate_settings([CloudSettings], (*ACCOUNTS, *arguments), {})
    assert [problem in each for each in mistakes] == [True]


@pytest.mark.parametrize(
    ("arguments", "environment", "network"),
    [
        ((_ROUTED, "--route-network=prod=4711"), {}, "4711"),
        ((_ROUTED,), {"HCLOUD_NETWORK": "4712"}, "4712"),
        ((_ROUTED, "--route-network=prod=4711"), {"HCLOUD_NETWORK": "4712"}, "4711"),
        (("--controllers=*", "--route-network=prod=4711"), {}, None),
    ],
    ids=["flag", "environment", "both", "off by default"],
)
def test_an_account_has_the_routes_of_one_network(
    arguments: tuple[str, ...], environment: dict[str, str], network: str | None
):
    settings = read_settings([CloudSettings], (*ACCOUNTS[:1], *ACCOUNTS[-1:], *arguments), environment)
    routes = settings.get(CloudSettings).find_routes("hcloud", "prod")
    assert (None if routes is None else routes.network) == network


@pytest.mark.parametrize(("flag", "router"), [("north", ""), ("north=0c1e", "0c1e"), ("south=0c1e", None)])
def test_an_account_of_openstack_may_have_the_router_of_its_credential_file(flag: str, router: str | None):
    accounts = ("--cloud-account=openstack/north,openstack/south", *ACCOUNTS[-1:])
    settings = read_settings([CloudSettings], (*accounts, _ROUTED, f"--route-network={flag}"), {})
    routes = settings.get(CloudSettings).find_routes("openstack", "north")
    assert (None if routes is None else routes.network) == router
