"""Properties of every file of rules and every machine."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.kubernetes_names import EFFECTS, key_problem, label_value_problem, why_reserved
from libs.common.cloud_config.model import (
    CloudConfig,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Rule,
    RuleEntry,
)
from libs.common.contract.machine import (
    Inventory,
    MachineFacts,
    PlatformMetadata,
    Processors,
    SystemInformation,
)
from services.labeler.core.plan.notices import build_skipped_notices
from services.labeler.core.rules.application import apply_rules
from services.labeler.core.rules.compilation import compile_rules
from services.labeler.core.rules.effects import RuleEffects
from tests.builders import NOW

# Surrogates too: they cannot come in as UTF-8, and must not be what ends the labeler.
HOSTILE = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=80),
    st.sampled_from(
        ["", "metal", "hcloud", "<no value>", "{{ .Region }}", "Standard PC (i440FX + PIIX, 1996)"]
    ),
    st.sampled_from(["a" * 64, "\x00", "\x1b[2J", "x" * 2_000, "true", "worker"]),
)
NUMBERS = st.one_of(st.integers(), st.sampled_from([2**63, -(2**63) - 1, 2**200]))
MAPS = st.dictionaries(HOSTILE, HOSTILE, max_size=4)


def texts_of(kind: type) -> dict[str, st.SearchStrategy]:
    return {field.name: HOSTILE for field in msgspec.structs.fields(kind) if field.type is str}


FACTS = st.builds(
    MachineFacts,
    platform=st.builds(PlatformMetadata, **texts_of(PlatformMetadata), spot=st.booleans(), tags=MAPS),
    system=st.none() | st.builds(SystemInformation, **texts_of(SystemInformation)),
    node_name=HOSTILE,
    node_ip=HOSTILE,
    queried_at=st.just(NOW),
    inventory=st.none()
    | st.builds(
        Inventory,
        talos_version=st.none() | HOSTILE,
        machine_type=st.none() | HOSTILE,
        extensions=st.none() | MAPS,
        processors=st.none()
        | st.builds(Processors, **texts_of(Processors), sockets=NUMBERS, cores=NUMBERS, threads=NUMBERS),
        memory_mib=st.none() | NUMBERS,
    ),
)
KEYS = st.sampled_from(
    [
        "a",
        "b",
        "example.com/c",
        "node-role.kubernetes.io/web",
        "talos.dev/x",
        "kubernetes.io/hostname",
    ]
)
FIELDS = ["Platform", "Hostname", "Region", "ProviderID", "Spot", "Tags", "ProductName", "UUID", "MemoryMiB"]
FIELDS += ["TalosVersion", "MachineType", "Extensions", "Schematic", "CPUModel", "CPUCores", "NoSuchField"]
TEMPLATES = st.one_of(
    HOSTILE.filter(lambda text: "{{" not in text),
    st.builds("{{{{ .{} }}}}".format, st.sampled_from(FIELDS)),
    st.builds('{{{{ .{} | printf "%v" | lower | trim }}}}:NoSchedule'.format, st.sampled_from(FIELDS)),
    st.sampled_from(
        ["{{ range $k, $v := .Tags }}{{ $k }}={{ $v }}{{ end }}", "{{ index .Tags 1 }}", "NoExecute"]
    ),
    st.sampled_from(
        ["{{ range 100000000 }}x{{ end }}", "{{ . }}", '{{ regexReplaceAll ".*" .Hostname "$0$0" }}']
    ),
)


def entries(keys: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[RuleEntry, ...]]:
    return st.dictionaries(keys, TEMPLATES, max_size=3).map(
        lambda found: tuple(RuleEntry(key, template, 1) for key, template in found.items())
    )


SELECTORS = st.lists(
    st.builds(
        NodeSelectorTerm,
        requirements=st.lists(
            st.builds(
                NodeSelectorRequirement,
                key=st.sampled_from(["platform", "hostname", "spot", "tags.a", "memorymib", "machinetype"]),
                operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Regexp", "Gt", "Lt"]),
                values=st.sampled_from([("metal",), ("^web",), ("7",), (".*",)]),
            ),
            max_size=2,
        ).map(tuple),
    ),
    max_size=2,
).map(tuple)
RULES = st.lists(
    st.builds(
        Rule,
        name=st.sampled_from(["", "one"]),
        index=st.integers(0, 9),
        selector=st.just(()) | SELECTORS,
        annotations=entries(KEYS),
        labels=entries(KEYS),
        taints=entries(KEYS),
        platform_metadata=entries(st.sampled_from(["region", "zone", "spot", "provider_id", "internal_dns"])),
        public_ip_discovery=st.sampled_from([None, True, False]),
        sanitize=st.booleans(),
    ),
    max_size=5,
).map(tuple)


def applied(rules: tuple[Rule, ...], facts: MachineFacts) -> RuleEffects:
    return apply_rules(compile_rules(CloudConfig(rules=rules)), facts)


def check(effects: RuleEffects) -> None:
    """Kubernetes accepts each desired key, no other writer owns it, and it can be encoded."""
    assert not any(key_problem(key) or why_reserved("labels", key) for key in effects.labels)
    assert not any(key_problem(key) or why_reserved("annotations", key) for key in effects.annotations)
    assert not any(map(label_value_problem, effects.labels.values()))
    assert sum(len(k) + len(v.encode()) for k, v in effects.annotations.items()) <= 65_536
    for taint in effects.taints:
        assert not key_problem(taint.key)
        assert not why_reserved("taints", taint.key)
        assert not label_value_problem(taint.value)
        assert taint.effect in EFFECTS
    assert len({taint.key for taint in effects.taints}) == len(effects.taints)
    wanted_keys = {("label", key) for key in effects.labels} | {
        ("annotation", key) for key in effects.annotations
    }
    assert not effects.retained & (wanted_keys | {("taint", taint.key) for taint in effects.taints})
    for notice in build_skipped_notices(effects):
        assert notice.message.isprintable()
    for told in effects.results:
        assert told.reason
        assert told.reason.isprintable()
    msgspec.json.encode((effects.labels, effects.annotations, effects.taints))


@given(RULES, FACTS)
def test_whatever_rules_and_machine_say_all_that_is_wanted_is_valid(rules, facts):
    check(applied(rules, facts))


@given(RULES, RULES, FACTS)
@settings(max_examples=60)
def test_a_rule_hears_nothing_of_the_others_and_the_last_word_counts(before, after, facts):
    """Each rule has the same result alone and among others; a later rule may override its values."""
    together, alone = applied((*before, *after), facts), applied(after, facts)
    if any(
        not told.is_evaluated and told.reason.startswith("the rules together") for told in together.results
    ):
        return  # the budget is one for all
    assert together.results[len(before) :] == alone.results
    assert together.labels.items() >= alone.labels.items()
    assert together.retained >= alone.retained
    assert set(together.taints) >= set(alone.taints)


STEERING = HOSTILE | st.sampled_from(
    [":NoExecute", "a:NoExecute", "NoExecute:", "a\n:NoExecute", "\u2028:NoExecute"]
)


@settings(max_examples=60)
@given(STEERING, STEERING)
def test_a_machine_gives_values_and_never_a_key_or_the_effect_that_its_rule_says(hostname: str, zone: str):
    rules = compile_rules(
        parse_cloud_config(
            "transformations:\n- labels: {example.com/a: '{{ .Hostname }}'}\n"
            "  annotations: {example.com/a: '{{ .Zone }}'}\n"
            "  taints:\n    example.com/a: '{{ .Hostname }}:NoSchedule'\n"
            "    example.com/b: 'x{{ .Zone }}:NoSchedule'\n",
            "ccm-config.yaml",
        )
    )
    platform = PlatformMetadata(platform="metal", hostname=hostname, zone=zone)
    effects = apply_rules(
        rules, MachineFacts(platform=platform, node_name="web-1", node_ip="10.0.0.5", queried_at=NOW)
    )
    assert effects.labels.keys() | effects.annotations.keys() <= {"example.com/a"}
    assert {(taint.key, taint.effect) for taint in effects.taints} <= {
        ("example.com/a", "NoSchedule"),
        ("example.com/b", "NoSchedule"),
    }
