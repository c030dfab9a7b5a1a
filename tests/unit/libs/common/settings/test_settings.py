"""Settings: every mistake at once, precedence, and what the reference's flags come to."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from libs.common.contract.controllers import (
    CLOUD_NODE,
    CSR_APPROVAL,
    NODE_LIFECYCLE,
    allocates_pod_cidrs,
    is_controller_selected,
)
from libs.common.settings import flags
from libs.common.settings.help_text import format_help
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import ParsedSettings, SettingsError, list_options, read_settings
from libs.common.settings.reference_flags import IGNORED_FLAGS
from tests.tables import naming


class GardenerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One field of every kind."""

    observe_only: Annotated[bool, flags.OBSERVE_ONLY] = False
    leader_elect: Annotated[bool, flags.LEADER_ELECT] = True
    lease_duration_seconds: Annotated[float, flags.LEASE_DURATION] = 15.0
    renew_deadline_seconds: Annotated[float, flags.RENEW_DEADLINE] = 10.0
    resync_seconds: Annotated[float, flags.NODE_STATUS_UPDATE_FREQUENCY] = 300.0
    cluster_name: Annotated[str, flags.CLUSTER_NAME] = ""
    prefer_ipv6: Annotated[bool, flags.PREFER_IPV6] = False
    talosconfig: Annotated[Path | None, flags.TALOSCONFIG] = None
    endpoints: Annotated[tuple[str, ...], flags.TALOS_ENDPOINTS] = ()
    in_flight: Annotated[int, flags.Flag("in-flight", "At once.", "Garden", at_least=1, at_most=512)] = 64
    share: Annotated[float, flags.Flag("share", "Part.", "Garden")] = 0.5
    shape: Annotated[Literal["round", "square"], flags.Flag("shape", "Form.", "Garden")] = "round"
    computed: int = 7

    def problems(self) -> tuple[str, ...]:
        if self.renew_deadline_seconds >= self.lease_duration_seconds:
            return ("--leader-elect-renew-deadline must be shorter than --leader-elect-lease-duration",)
        return ()


def read(*arguments: str, **environment: str) -> ParsedSettings:
    return read_settings([GardenerSettings, ProcessSettings], arguments, environment)


def garden(*arguments: str, **environment: str) -> GardenerSettings:
    return read(*arguments, **environment).get(GardenerSettings)


def mistakes(*arguments: str, **environment: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(*arguments, **environment)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--observe-only"], "observe_only", True),
        (["--observe-only=true"], "observe_only", True),
        (["--leader-elect=false"], "leader_elect", False),
        (["--leader-elect=F"], "leader_elect", False),
        (["--leader_elect=false"], "leader_elect", False),  # Kubernetes' flags take either sign
        (["--node-status-update-frequency=5m0s"], "resync_seconds", 300.0),
        (["--node-status-update-frequency", "10s"], "resync_seconds", 10.0),
        (["--node-status-update-frequency", "1h2m3.5s"], "resync_seconds", 3723.5),
        (["--talos-endpoints=10.0.0.1, 10.0.0.2:50000,"], "endpoints", ("10.0.0.1", "10.0.0.2:50000")),
        (["--talos-endpoints=a", "--talos-endpoints=b,c"], "endpoints", ("a", "b", "c")),
        (["--talosconfig=/x/config"], "talosconfig", Path("/x/config")),
        (["--talosconfig="], "talosconfig", None),
        (["--in-flight", "1", "--in-flight=2"], "in_flight", 2),
        (["--share=.25"], "share", 0.25),
        (["--shape=square"], "shape", "square"),
        (["--cluster-name", "prod"], "cluster_name", "prod"),
    ],
)
def test_a_flag_is_read_as_pflag_reads_it(arguments: list[str], field: str, value: object):
    assert getattr(garden(*arguments), field) == value


def test_the_command_line_wins_over_the_environment():
    assert garden(TALOS_ENDPOINTS="e").endpoints == ("e",)
    assert garden("--talos-endpoints=c", TALOS_ENDPOINTS="e").endpoints == ("c",)
    assert garden(TALOSCONFIG="").talosconfig is None


def test_klog_verbosity_in_both_spellings():
    for arguments in (["--v=4"], ["-v=4"], ["-v4"], ["-v", "4"], ["--v", "4"]):
        assert read(*arguments).get(ProcessSettings).verbosity == 4


def test_every_mistake_is_reported_at_once_and_by_name():
    message = mistakes(
        "--talosconfg=/x",
        "--bananas",
        "--in-flight=many",
        "--share",
        "half",
        "--shape=blue",
        "--node-status-update-frequency=300",
        "--leader-elect=perhaps",
        "--in-flght",
        "3",
        "--leader-elect-renew-deadline=20s",
        "--kubeconfig",
        NATS_URL="http://nats:4222",
    )
    assert message == [
        "unknown flag --talosconfg, did you mean --talosconfig?",
        "unknown flag --bananas",
        "unknown flag --in-flght, did you mean --in-flight?",
        "--kubeconfig needs a value",
        '--leader-elect: "perhaps" is not true or false',
        '--node-status-update-frequency: "300" is not a duration such as 5m0s, 10s or 500ms',
        '--in-flight: "many" is not a whole number',
        '--share: "half" is not a number',
        '--shape: "blue" is not one of round, square',
        "--leader-elect-renew-deadline must be shorter than --leader-elect-lease-duration",
        '--nats-url: "http://nats:4222" is not an address such as nats://host:4222 or tls://host:4222',
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--in-flight=0"], '--in-flight: "0" is not at least 1'),
        (["--in-flight=513"], '--in-flight: "513" is not at most 512'),
        (["--in-flight=1e3"], '--in-flight: "1e3" is not a whole number'),
        (["--in-flight=٣"], '--in-flight: "٣" is not a whole number'),
        (["--share=nan"], '--share: "nan" is not a number'),
        (
            ["--node-status-update-frequency=500ms"],
            '--node-status-update-frequency: "500ms" is not at least 1s',
        ),
        (
            ["--leader-elect", "false"],
            '"false" is not a flag: set a boolean with =, --leader-elect=false',
        ),
        (["now"], '"now" is not a flag: flags begin with --'),
        (["--tls-cert-file=/x"], "--tls-cert-file and --tls-private-key-file must be given together"),
        (["--otlp-endpoint=otel:4318"], '--otlp-endpoint: "otel:4318" is not a URL such as http://host:4318'),
        (["--secure-port=70000"], '--secure-port: "70000" is not at most 65535'),
    ],
)
def test_a_bad_value_says_what_was_expected(arguments: list[str], message: str):
    assert mistakes(*arguments) == [message]


@pytest.mark.parametrize(
    ("arguments", "together", "alone"),
    [
        ([], True, False),
        (["--nats-url="], True, False),
        (["--nats-url=nats://nats:4222"], False, False),
        (["--nats-ca-file=/ca"], False, False),
        (["--nats-nkey-file=/seed"], False, False),
        (["--bus=nats"], False, False),
        (["--bus=memory", "--nats-url=nats://nats:4222"], True, True),
    ],
)
def test_messages_stay_in_a_process_of_all_services_unless_somebody_speaks_of_nats(
    arguments: list[str], together: bool, alone: bool
):
    settings = read(*arguments).get(ProcessSettings)
    assert (settings.uses_memory_bus(is_standalone=False), settings.uses_memory_bus(is_standalone=True)) == (
        together,
        alone,
    )


def test_nats_is_looked_for_where_it_was_said_to_be():
    assert read().get(ProcessSettings).nats_servers == ("nats://127.0.0.1:4222",)
    settings = read(NATS_URL="nats://a,tls://b:4222").get(ProcessSettings)
    assert settings.nats_servers == ("nats://a", "tls://b:4222")
    assert not settings.uses_memory_bus(is_standalone=False)


def test_nats_flags_that_the_memory_bus_does_not_use_are_warned_of():
    (warning,) = read("--bus=memory", NATS_URL="nats://a").warnings
    assert warning.startswith("--bus=memory: NATS is not used")
    assert read("--bus=memory").warnings == ()


def test_a_mistake_in_the_environment_names_the_variable():
    class Patient(msgspec.Struct, frozen=True):
        tries: Annotated[int, flags.Flag("tries", "How often.", "Garden", env="TRIES")] = 3

    with pytest.raises(SettingsError, match='TRIES: "x" is not a whole number'):
        read_settings([Patient], [], {"TRIES": "x"})


# ---- the reference's flags

REFERENCE_CHART = (
    "--v=2 --cloud-provider=talos --cloud-config={config} --controllers=cloud-node,node-csr-approval "
    "--leader-elect-resource-name=cloud-controller-manager-talos --use-service-account-credentials "
    "--secure-port=10458 --authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics"
)


def test_the_arguments_of_the_reference_s_chart_start_us(tmp_path: Path):
    config = tmp_path / "ccm-config.yaml"
    config.write_text("global:\n  clusterName: prod\n")
    reading = read(*REFERENCE_CHART.format(config=config).split())
    assert reading.get(GardenerSettings).cluster_name == "prod"
    assert reading.get(ProcessSettings).secure_port == 10458
    assert [warning.split(":")[0] for warning in reading.warnings] == [
        "--leader-elect-resource-name has no effect here",
        "--use-service-account-credentials=true has no effect",
    ]


ALWAYS_ALLOW = "--authorization-always-allow-paths"


@pytest.mark.parametrize(
    ("allowed", "left_out"),
    {
        "/healthz,/readyz,/livez": "/metrics",  # Kubernetes' default
        "/metrics": "/healthz, /livez, /readyz",
        "": "/healthz, /livez, /readyz, /metrics",
        "/health*,/live,/readyz,/metrics/*": "/livez, /metrics",
        "/*z": "/healthz, /livez, /readyz, /metrics",
    }.items(),
)
def test_a_path_that_the_reference_would_protect_is_refused(allowed: str, left_out: str):
    (line,) = mistakes(f"{ALWAYS_ALLOW}={allowed}")
    assert line.startswith(f"{ALWAYS_ALLOW} lacks {left_out}, and no path can be protected here: ")


@pytest.mark.parametrize(
    "arguments",
    [
        (f"{ALWAYS_ALLOW}=/healthz,/livez,/readyz,/metrics,/configz",),
        (f"{ALWAYS_ALLOW}=/healthz,/livez,/readyz", f"{ALWAYS_ALLOW}=/metrics"),  # lists add up, as in pflag
        (f"{ALWAYS_ALLOW}=/*",),
        (f"{ALWAYS_ALLOW}=healthz,livez,ready*,metrics",),
        (f"{ALWAYS_ALLOW}=/healthz", "--secure-port=0"),  # nothing is served
    ],
)
def test_a_list_of_all_paths_is_accepted_without_a_word(arguments: tuple[str, ...]):
    assert read(*arguments).warnings == ()


@pytest.mark.parametrize(
    "argument",
    ["--client-ca-file=/ca", "--tls-min-version=VersionTLS13", "--tls-cipher-suites=TLS_AES_128_GCM_SHA256"],
)
def test_a_flag_that_asks_for_protection_is_reported_as_ignored(argument: str):
    (warning,) = read(argument).warnings
    assert warning.startswith(f"{argument} is ignored: ")


# What `cloud-controller-manager --help` of k8s.io/cloud-provider 0.36 lists, with the reference's additions.
REFERENCE_FLAGS = """
allocate-node-cidrs allow-metric-labels allow-metric-labels-manifest allow-untagged-cloud
authentication-kubeconfig authentication-skip-lookup authentication-token-webhook-cache-ttl
authentication-tolerate-lookup-failure authorization-always-allow-paths authorization-kubeconfig
authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl bind-address cert-dir
cidr-allocator-type client-ca-file cloud-config cloud-provider cluster-cidr cluster-name
concurrent-node-status-updates concurrent-node-syncs concurrent-service-syncs configure-cloud-routes
contention-profiling controller-start-interval controllers disable-http2-serving disabled-metrics
emulated-version enable-leader-migration external-cloud-volume-plugin feature-gates
http2-max-streams-per-connection kube-api-burst kube-api-content-type kube-api-qps kubeconfig leader-elect
leader-elect-lease-duration leader-elect-renew-deadline leader-elect-resource-lock leader-elect-resource-name
leader-elect-resource-namespace leader-elect-retry-period leader-migration-config log-flush-frequency
log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream
logging-format master min-compatibility-version min-resync-period node-cidr-mask-size
node-cidr-mask-size-ipv4 node-cidr-mask-size-ipv6 node-monitor-period node-status-update-frequency
node-sync-period permit-address-sharing permit-port-sharing profiling requestheader-allowed-names
requestheader-client-ca-file requestheader-extra-headers-prefix requestheader-group-headers
requestheader-uid-headers requestheader-username-headers route-reconciliation-period secure-port
service-cluster-ip-range show-hidden-metrics-for-version tls-cert-file tls-cipher-suites tls-curve-preferences
tls-min-version tls-private-key-file tls-sni-cert-key use-service-account-credentials v vmodule
webhook-bind-address webhook-cert-dir webhook-disable-http2-serving webhook-secure-port webhook-tls-cert-file
webhook-tls-cipher-suites webhook-tls-curve-preferences webhook-tls-min-version webhook-tls-private-key-file
webhook-tls-sni-cert-key webhooks
""".split()  # noqa: SIM905 - a list of 80 words reads better as text
BOOLEANS = {name for name, flag in IGNORED_FLAGS.items() if flag.is_boolean} | {
    "leader-elect",
    "allocate-node-cidrs",
}
OF_IPAM = {
    "allocate-node-cidrs", "cluster-cidr", "service-cluster-ip-range", "cidr-allocator-type",
    "node-cidr-mask-size", "node-cidr-mask-size-ipv4", "node-cidr-mask-size-ipv6",
}  # fmt: skip
SENSIBLE = {
    "authorization-always-allow-paths": "/*",
    "controllers": "cloud-node",
    "leader-elect-lease-duration": "30s",
    "leader-elect-renew-deadline": "10s",
    "leader-elect-retry-period": "2s",
    "logging-format": "json",
    "node-status-update-frequency": "5m0s",
    "secure-port": "0",
    "v": "2",
}


def test_every_flag_of_the_reference_is_obeyed_or_its_uselessness_explained(tmp_path: Path):
    obeyed = {option.flag.name for option in list_options(GardenerSettings, ProcessSettings)}
    shared = {"leader-elect-retry-period", "leader-elect-resource-name", "leader-elect-resource-namespace"}
    empty = tmp_path / "empty"
    empty.touch()
    for name in REFERENCE_FLAGS:
        with naming(name):
            text = str(empty) if name == "cloud-config" else SENSIBLE.get(name, "7")
            arguments = [f"--{name}"] if name in BOOLEANS else [f"--{name}", text]
            if name in ("tls-cert-file", "tls-private-key-file"):
                arguments = ["--tls-cert-file=/c", "--tls-private-key-file=/k"]
            warnings = read(*arguments).warnings
            assert len(warnings) == (0 if name in obeyed else 1), warnings
            assert name in obeyed | shared | OF_IPAM or warnings[0].startswith(f"--{name}=")


def test_the_booleans_among_the_accepted_do_not_swallow_the_next_flag():
    for name in BOOLEANS:
        assert read(f"--{name}", "--in-flight=3").get(GardenerSettings).in_flight == 3


def test_a_value_that_asks_for_what_we_do_anyway_is_not_warned_of():
    values = ("--cloud-provider=external", "--configure-cloud-routes=false", "--tls-min-version=VersionTLS12")
    assert read(*values).warnings == ()


def test_a_flag_of_another_service_is_accepted_and_reported():
    reading = read_settings([ProcessSettings], ["--leader-elect", "--observe-only=true"], {})
    assert reading.warnings == (
        "--leader-elect has no effect here: it belongs to another service",
        "--observe-only has no effect here: it belongs to another service",
    )


@pytest.mark.parametrize(
    ("items", "differs_from_the_reference"),
    [
        ("*", True),
        ("-cloud-node,*", True),
        ("*,cloud-node-lifecycle", True),
        ("*,-cloud-node-lifecycle", True),
        ("*,-node-csr-approval", True),
        ("*,node-csr-approval,cloud-node-lifecycle", False),
        ("*,-node-csr-approval,cloud-node-lifecycle-controller", False),
        ("cloud-node,node-csr-approval", False),
        ("node-csr-approval", False),
        ("cloud-node-controller", False),
        ("cloud-node,-*", False),
        ("cloud-node,cloud-node-lifecycle,node-ipam-controller", False),
        ("cloud-node,service,route", False),
    ],
)
def test_all_that_differs_from_the_reference_is_warned_of(items: str, differs_from_the_reference: bool):
    warnings = read(f"--controllers={items}").warnings
    message = [each for each in warnings if "in the reference" in each]
    assert bool(message) is differs_from_the_reference
    assert not message or "selects cloud-node and cloud-node-lifecycle" in message[0]


@pytest.mark.parametrize("items", ["-cloud-node,*,-node-csr-approval", "-*"])
def test_without_any_controller_of_this_version_there_is_nothing_to_run(items: str):
    (message,) = mistakes(f"--controllers={items}")
    assert "selects no controller" in message


@pytest.mark.parametrize(
    ("items", "selected"),
    [
        (("*",), {CLOUD_NODE, CSR_APPROVAL}),
        (("cloud-node",), {CLOUD_NODE}),
        (("cloud-node", "node-csr-approval"), {CLOUD_NODE, CSR_APPROVAL}),
        (("certificatesigningrequest-approving-controller",), {CSR_APPROVAL}),
        (("*", "-node-csr-approval"), {CLOUD_NODE}),
        (("-cloud-node-controller", "*"), {CSR_APPROVAL}),
        (("node-csr-approval", "-node-csr-approval", "cloud-node"), {CLOUD_NODE}),
        (("*", "cloud-node-lifecycle"), {CLOUD_NODE, CSR_APPROVAL, NODE_LIFECYCLE}),
        (("cloud-node-lifecycle-controller",), {NODE_LIFECYCLE}),
        (("cloud-node-lifecycle", "-cloud-node-lifecycle-controller", "*"), {CLOUD_NODE, CSR_APPROVAL}),
    ],
)
def test_controllers_say_what_runs_and_nodes_are_deleted_only_by_name(
    items: tuple[str, ...], selected: set[str]
):
    known = (CLOUD_NODE, CSR_APPROVAL, NODE_LIFECYCLE)
    assert {name for name in known if is_controller_selected(items, name)} == selected
    assert is_controller_selected(items, "node-csr-approval") is (CSR_APPROVAL in selected)


@pytest.mark.parametrize(
    ("items", "flag", "on"),
    [
        (("*",), False, False),
        (("*", "node-ipam-controller"), False, True),
        (("cloud-node", "nodeipam"), False, True),
        (("nodeipam", "-node-ipam-controller"), False, False),
        (("cloud-node",), True, True),
        (("*", "-node-ipam-controller"), True, False),
    ],
)
def test_pod_cidrs_are_allocated_only_by_name_or_by_flag(items: tuple[str, ...], flag: bool, on: bool):
    assert allocates_pod_cidrs(items, allocate_node_cidrs=flag) is on


def test_a_misspelt_controller_is_a_mistake():
    (message,) = mistakes("--controllers=cloud-node,cloud-nod")
    assert message.startswith("--controllers: unknown controller 'cloud-nod'")


# ---- --help


def test_help_names_every_flag_once_within_80_columns():
    text = format_help("probe", "Waits.", list_options(GardenerSettings, ProcessSettings, GardenerSettings))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.count("--in-flight") == 1
    assert "Default: 5m0s." in text
    assert "Environment: TALOS_ENDPOINTS." in text
    for option in list_options(ProcessSettings):
        assert f"--{option.flag.name}" in text


def test_help_and_version_win_over_mistakes():
    assert read("--bananas", "--help").wants_help
    assert read("-h").wants_help
    assert read("--version").wants_version
