"""The cost of rules for one Node is limited; the nearest valid label value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.kubernetes_names import label_value_problem
from libs.common.cloud_config.model import NodeSelectorRequirement
from libs.common.contract.machine import MachineFacts
from libs.gotemplate import TemplateError, parse, record
from libs.gotemplate.bounds import MAX_STEPS
from services.labeler.core.rules.application import apply_rules
from services.labeler.core.rules.bounds import MAX_NODE_STEPS, NodeBudget, NodeBudgetExceeded
from services.labeler.core.rules.compilation import compile_rules
from services.labeler.core.rules.effects import RuleEffects
from services.labeler.core.rules.value_validation import sanitize_label_value
from tests.builders import make_facts

DATA = record("Machine", {})
ENDLESS = parse("{{ range 1000000000 }}{{ end }}")


def applied(rules: str, facts: MachineFacts | None = None) -> RuleEffects:
    config = parse_cloud_config(f"transformations:\n{rules}", "f")
    return apply_rules(compile_rules(config), facts or make_facts())


def a_rule(key: str, pattern: str, label: str) -> str:
    requirement = f"{{key: {key}, operator: Regexp, values: ['{pattern}']}}"
    return f"- nodeSelector: [{{matchExpressions: [{requirement}]}}]\n  labels: {{{label}}}"


def judged(effects: RuleEffects) -> int:
    """Return the number of evaluated rules; all others must follow them and be retained."""
    count = sum(told.is_evaluated for told in effects.results)
    assert all(told.is_evaluated for told in effects.results[:count])
    assert len(effects.labels) + len(effects.retained) == len(effects.results)
    return count


def test_a_rendering_takes_from_the_budget_of_its_node_what_it_costs():
    budget = NodeBudget()
    cheap = parse("{{ .Platform }}")
    budget.render(cheap, record("Machine", {"Platform": "metal"}))
    budget.spend(MAX_NODE_STEPS - 100)
    with pytest.raises(NodeBudgetExceeded):
        budget.spend(101)


def test_a_template_is_stopped_by_its_own_bound_first_and_by_the_nodes_when_less_is_left():
    budget = NodeBudget()
    with pytest.raises(TemplateError, match="MAX_STEPS = 20000"):
        budget.render(ENDLESS, DATA)
    assert MAX_NODE_STEPS < 2 * MAX_STEPS
    with pytest.raises(NodeBudgetExceeded, match=f"more than MAX_NODE_STEPS = {MAX_NODE_STEPS} steps"):
        budget.render(ENDLESS, DATA)
    with pytest.raises(NodeBudgetExceeded):
        budget.render(parse("{{ .Platform }}"), DATA)


def test_an_error_of_a_template_stays_one_while_little_is_left():
    budget = NodeBudget()
    budget.spend(MAX_NODE_STEPS - 10)
    with pytest.raises(TemplateError, match="can't evaluate field No"):
        budget.render(parse("{{ .No }}"), DATA)


def test_a_thousand_usual_rules_are_all_judged():
    template = '{{ .Platform | upper | printf "%s" }}'
    rules = (a_rule("hostname", f"^web-.*-{n}$|1", f"l{n}: '{template}'") for n in range(1000))
    assert judged(applied("\n".join(rules))) == 1000


def test_templates_that_each_take_all_they_may_leave_the_rest_unjudged_and_name_the_bound():
    rules = "\n".join(
        f"- {{name: r{n}, labels: {{l{n}: '{{{{ range 6000 }}}}{{{{ end }}}}'}}}}" for n in range(50)
    )
    effects = applied(rules)
    count = judged(effects)
    assert 1 < count < 6
    assert effects.exhausted_by is effects.results[count]
    assert (effects.exhausted_by.rule, list(effects.list_skipped())) == (f"r{count}", [])
    assert effects.exhausted_by.reason == (
        f"the rules together need more than MAX_NODE_STEPS = {MAX_NODE_STEPS} steps: "
        f"neither r{count} nor a later rule was evaluated"
    )
    assert effects.failures == 1


@pytest.mark.parametrize(
    "pattern", ["(a?){500}a{100}b", "(x|yy.*z){1,200}$", ".*.*.*.*b$"], ids=["nested", "large", "stars"]
)
def test_a_selectors_pattern_is_paid_for_before_it_is_searched_in_a_long_text(pattern: str):
    rules = "\n".join(a_rule("instanceid", pattern, f"l{n}: x") for n in range(200))
    effects = applied(rules, make_facts(instance_id="a" * 60_000))
    assert sum(told.is_evaluated for told in effects.results) < 20
    assert effects.failures == 1


def test_more_patterns_than_are_kept_compiled_are_paid_for_for_each_machine():
    def evaluated(count: int) -> int:
        rules = "\n".join(a_rule("zone", f"(x{n}|y){{150}}", f"l{n}: x") for n in range(count))
        return sum(told.is_evaluated for told in applied(rules, make_facts(zone="z")).results)

    assert evaluated(100) == 100
    assert evaluated(600) < 600


def test_a_requirement_is_paid_for_by_the_number_of_its_values():
    requirement = NodeSelectorRequirement(key="zone", operator="In", values=("a",) * 16 * MAX_NODE_STEPS)
    with pytest.raises(NodeBudgetExceeded):
        NodeBudget().spend_on_requirement(requirement, "a")


# ---- label values


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("Standard PC (i440FX + PIIX, 1996)", "Standard-PC-i440FX-PIIX-1996"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "Intel-R-Xeon-R-CPU-2.20GHz"),
        ("Zürich", "Z-rich"),
        (" v1 ", "v1"),
        ("--a__b..", "a__b"),
        ("a" * 62 + "-b", "a" * 62),
        ("a" * 64, "a" * 63),
        (" \t", ""),
        ("日本", ""),
        ("", ""),
        ("1.10", "1.10"),
    ],
)
def test_a_text_becomes_the_nearest_label_value(text: str, nearest: str):
    assert sanitize_label_value(text) == nearest


@given(st.text(max_size=200))
def test_whatever_comes_out_is_a_label_value_and_stays_one(text: str):
    nearest = sanitize_label_value(text)
    assert not label_value_problem(nearest)
    assert sanitize_label_value(nearest) == nearest


@given(st.from_regex(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", fullmatch=True))
def test_a_label_value_stays_as_it_is(value: str):
    assert sanitize_label_value(value) == value
