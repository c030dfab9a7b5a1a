"""All searches of load balancers, their targets and routes, and all rules that they leave out."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from tests.model.clouds import balancer_rules, route_rules, target_rules
from tests.model.search import Model

OpenModel = Callable[[], AbstractContextManager[Model[Any]]]

_MODELS: Final = {"load balancers": balancer_rules, "routes": route_rules, "targets": target_rules}
# by name: what opens the model, and the number of states without which it has lost steps
SEARCHES: Final[Mapping[str, tuple[OpenModel, int]]] = {
    f"{what}, {name}": (each.open_model, rules.MIN_STATES)
    for what, rules in _MODELS.items()
    for name, each in rules.SEARCHES.items()
}
# by name: what opens the model without the rule, and the violation that follows
RULES: Final[Mapping[str, tuple[OpenModel, str]]] = {
    f"{what} without the rule that {name}": (each.left_out, each.violation)
    for what, rules in _MODELS.items()
    for name, each in rules.RULES.items()
}
