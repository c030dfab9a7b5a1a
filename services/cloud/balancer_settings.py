"""Settings of load balancers: which Services each account has, and the Lease of its process."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec

from libs.clouds.hcloud.balancers.desired import ROBOT_ENABLED
from libs.common.contract.controllers import SERVICE_LB, is_controller_selected
from libs.common.contract.instances import CLOUD_PROVIDERS
from libs.common.contract.services import LEASE_NAMESPACE as OUR_NAMESPACE
from libs.common.settings import flags
from services.cloud.balancer_options import CHECKS
from services.cloud.core.balancers.balancer_record import BalancerAccount

_ENABLED: Final = "HCLOUD_LOAD_BALANCERS_ENABLED"
# A qualified name, as Kubernetes requires of spec.loadBalancerClass.
_CLASS: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


class AccountBalancers(msgspec.Struct, frozen=True, kw_only=True):
    """The Services whose load balancers an account has, and the options of its adapter."""

    account: BalancerAccount
    options: Mapping[str, str] = {}  # by the names of the cloud's own controller


class BalancerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of load balancers, of all accounts."""

    controllers: Annotated[tuple[str, ...], flags.CONTROLLERS] = ("*",)
    observe_only: Annotated[bool, flags.OBSERVE_ONLY] = False
    balancer_classes: Annotated[
        tuple[str, ...],
        flags.Flag(
            "load-balancer-class",
            "Accounts with the load balancers of Services of a class, each as account=class, such as "
            "prod=example.com/hcloud. The class is the spec.loadBalancerClass of the Services. It needs "
            "service-lb-controller in --controllers, and a credential that may write. Providers: "
            f"{', '.join(CLOUD_PROVIDERS)}.",
            flags.LOAD_BALANCERS,
        ),
    ] = ()
    default_balancer_account: Annotated[
        str,
        flags.Flag(
            "load-balancer-default-account",
            "Account with the load balancers of Services without a class. No other controller may have them.",
            flags.LOAD_BALANCERS,
        ),
    ] = ""
    balancer_options: Annotated[
        tuple[str, ...],
        flags.Flag(
            "load-balancer-option",
            "Settings of the load balancers of an account, each as account/NAME=value. The names are those "
            "that the cloud's own controller reads from its environment, such as prod/HCLOUD_NETWORK=4711, "
            "or from [LoadBalancer] of its cloud.conf: prod/subnet-id=<uuid>.",
            flags.LOAD_BALANCERS,
        ),
    ] = ()
    balancer_dry_run: Annotated[
        bool,
        flags.Flag(
            "load-balancer-dry-run",
            "Only log what would change; write neither to the cloud nor to Services.",
            flags.LOAD_BALANCERS,
        ),
    ] = False
    hcloud_network: Annotated[
        str,
        flags.Flag(
            "",
            "Id or name of the network of load balancers, for accounts at hcloud.",
            flags.LOAD_BALANCERS,
            env="HCLOUD_NETWORK",
        ),
    ] = ""
    robot_enabled: Annotated[
        str,
        flags.Flag(
            "",
            "Whether dedicated servers are targets of load balancers, for accounts at hcloud.",
            flags.LOAD_BALANCERS,
            env=ROBOT_ENABLED,
        ),
    ] = ""
    hcloud_defaults: Annotated[
        tuple[str, ...],
        flags.Flag(
            "",
            "Defaults of the annotations of Services at hcloud, as in Hetzner's own controller. "
            "--load-balancer-option has precedence.",
            flags.LOAD_BALANCERS,
            env="HCLOUD_LOAD_BALANCERS_*",
        ),
    ] = ()
    leader_elect: Annotated[bool, flags.LEADER_ELECT] = True
    lease_namespace: Annotated[str, flags.LEASE_NAMESPACE_FLAG] = OUR_NAMESPACE
    # The Lease has to outlive a write to the cloud, which may take half a minute.
    lease_duration_seconds: float = 90.0
    renew_deadline_seconds: float = 60.0
    retry_period_seconds: float = 5.0

    @property
    def is_balancer_dry_run(self) -> bool:
        """Whether nothing is written for load balancers."""
        return self.balancer_dry_run or self.observe_only

    def find_balancers(self, provider: str, account: str) -> AccountBalancers | None:
        """Return which load balancers the account has; None if it has none."""
        load_balancer_class = dict(split_pairs(self.balancer_classes)).get(account, "")
        is_default = self.default_balancer_account == account
        is_on = is_controller_selected(self.controllers, SERVICE_LB)
        if not is_on or not (load_balancer_class or is_default):
            return None
        return AccountBalancers(
            account=BalancerAccount(
                name=account, load_balancer_class=load_balancer_class, is_default=is_default
            ),
            options=self._collect_options(provider, account),
        )

    def _collect_options(self, provider: str, account: str) -> Mapping[str, str]:
        native: dict[str, str] = {}
        if provider == "hcloud":
            native = dict(split_pairs(self.hcloud_defaults))
            native.pop(_ENABLED, None)  # --load-balancer-class decides
            given = {"HCLOUD_NETWORK": self.hcloud_network, ROBOT_ENABLED: self.robot_enabled}
            native |= {name: value for name, value in given.items() if value}
        own = dict(split_pairs(self.balancer_options))
        prefix = f"{account}/"
        return native | {
            name.removeprefix(prefix): value for name, value in own.items() if name.startswith(prefix)
        }

    def find_balancer_problems(self, providers: Mapping[str, str]) -> Iterator[str]:
        """Yield the invalid settings; `providers` has that of each account."""
        classes = split_pairs(self.balancer_classes)
        for account, name in classes:
            if account not in providers or not _CLASS.fullmatch(name):
                form = "account=class, with an account of --cloud-account"
                yield f"--load-balancer-class={account}={name}: the form is {form}"
        for repeated in _find_repeated([account for account, _ in classes], [name for _, name in classes]):
            yield f"--load-balancer-class: {repeated} is there twice"
        default = self.default_balancer_account
        if default and default not in providers:
            yield f"--load-balancer-default-account={default}: --cloud-account has no such account"
        for text in self.balancer_options:
            account, _, option = text.partition("/")
            name, separator, _ = option.partition("=")
            if account not in providers or not name or not separator:
                yield f"--load-balancer-option={text}: the form is account/NAME=value"
        for account, provider in providers.items():
            if (balancers := self.find_balancers(provider, account)) and provider in CHECKS:
                try:
                    CHECKS[provider](balancers.options)
                except ValueError as error:
                    yield f"--load-balancer-option of {account}: {error}"

    def find_balancer_warnings(self) -> Iterator[str]:
        """Yield settings without effect."""
        is_on = is_controller_selected(self.controllers, SERVICE_LB)
        has_account = bool(self.balancer_classes or self.default_balancer_account)
        if is_on and not has_account:
            yield (
                "--controllers: service-lb-controller has no effect without --load-balancer-class and "
                "--load-balancer-default-account"
            )
        if has_account and not is_on:
            yield "--load-balancer-class has no effect: --controllers lacks service-lb-controller"


def split_pairs(values: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return name and value of each `name=value`."""
    return [(name, value) for name, _, value in (text.partition("=") for text in values)]


def _find_repeated(*columns: list[str]) -> Iterator[str]:
    for column in columns:
        yield from (value for value, count in Counter(column).items() if count > 1)
