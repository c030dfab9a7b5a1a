"""The click commands `talos-ccm explain csr`, `talos-ccm explain node` and `talos-ccm explain service`."""

import sys
from pathlib import Path
from typing import Any

import click

from cli import access_options
from cli.command_exit import run_command

_PROGRESS = "Querying the cluster and the machine"


class _ExplainGroup(click.Group):
    """A group that suggests the subcommand for a name without one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        kind, _, name = args[0].rpartition("/")  # kubectl writes node/web-1
        if self.get_command(ctx, args[0]) is None and not name.startswith("-"):
            if not kind and args[1:] and not args[1].startswith("-"):
                kind, name = args[:2]
            is_request = name.startswith("csr-") or kind.startswith(("csr", "certificate"))
            likely = "csr" if is_request else "service" if kind in ("service", "services", "svc") else "node"
            kinds = sorted(("node", "csr", "service"), key=lambda each: each != likely)
            commands = "".join(f"\n  talos-ccm explain {each} {name}" for each in kinds)
            ctx.fail(f"'{args[0]}' is not a subcommand. Did you mean one of these?{commands}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_ExplainGroup, short_help="Explain the state of a Node, a request for a certificate or a Service."
)
def explain() -> None:
    """Explain the state of a Node, a certificate signing request or the load balancer of a Service."""


@explain.command(short_help="Explain a kubelet's request for a serving certificate.")
@click.argument("name")
@click.option(
    "--node", "of_node", is_flag=True, help="NAME is the name of a node: explain its newest request."
)
@access_options.KUBERNETES_OPTIONS
@access_options.CHART_OPTIONS
@access_options.TALOS_OPTIONS
@click.option(
    "--all-machines",
    is_flag=True,
    help="Query every machine of the cluster for the names and addresses, not only the machines of "
    "Nodes that claim them.",
)
@click.option(
    "--without-talos",
    is_flag=True,
    help="Decide as csr does if metadata runs with --without-talos: query no machine.",
)
@access_options.service_flag("csr", "csr-allowed-networks", "NETWORK,...")
@access_options.service_flag(
    "csr",
    "service-cluster-ip-range",
    "NETWORK,...",
    help_text="Without it, a control plane is queried for the service networks through Talos. ",
)
@access_options.service_flag("csr", "csr-min-expiration", "DURATION")
@access_options.service_flag("csr", "csr-max-expiration", "DURATION")
@access_options.cloud_config_option(
    "Path to the --cloud-config file, which configures ownership; - is standard input. Default: the "
    "ConfigMap of the chart."
)
@access_options.output_option()
def csr(*, output: str, cloud_config: Path | None, **source: Any) -> None:
    """Explain the CertificateSigningRequest NAME: its content, the result of each check that csr makes
    now, the decision with its reason, the state in Kubernetes, and suggested actions.

    The command queries the machine of the requesting node through the Talos API, and the machines of Nodes
    that claim the same names or addresses. Without a talosconfig, the checks that need a machine are
    unknown. Nothing is changed.

    \b
    Exit status:
      0  the request is approved or would be approved
      1  it is not: it is denied, superseded, waiting, or not handled by csr
      2  unknown: no access to the cluster, no such request, or invalid
         arguments

    \b
    Examples:
      talos-ccm explain csr csr-x7k2p
      talos-ccm explain csr web-1 --node -o json
      talos-ccm explain csr csr-x7k2p --cloud-config ccm-config.yaml
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    with run_command(_PROGRESS):
        import msgspec  # noqa: PLC0415

        from cli.cluster.installation import read_service_settings  # noqa: PLC0415
        from cli.cluster.kube_reader import run_gathering  # noqa: PLC0415 - for `--help`
        from cli.explain.csr import output as view  # noqa: PLC0415
        from cli.explain.csr.from_cluster import RequestQuery, gather_request_evidence  # noqa: PLC0415
        from cli.explain.csr.request_explanation import explain_request  # noqa: PLC0415
        from cli.lines import print_result  # noqa: PLC0415
        from cli.render.compiled_config import read_config  # noqa: PLC0415
        from services.csr.settings import CsrSettings  # noqa: PLC0415

        flags = access_options.pop_flags(source, CsrSettings)
        file = read_config(cloud_config).document if cloud_config else None
        evidence = run_gathering(gather_request_evidence(RequestQuery(**source), file))
        settings = read_service_settings(CsrSettings, flags, evidence.container)
        services = settings.service_cluster_ip_range or None
        policy = msgspec.structs.replace(settings.policy, service_networks=services)
        explanation = explain_request(evidence, policy)
        print_result(output, view.format_explanation(explanation), view.explanation_to_json(explanation))
        sys.exit(explanation.exit_status)


@explain.command(short_help="Explain the state of a Node and whether its machine is gone.")
@click.argument("name")
@access_options.KUBERNETES_OPTIONS
@access_options.CHART_OPTIONS
@access_options.LEASE_OPTIONS
@access_options.TALOS_OPTIONS
@access_options.service_flag(
    "lifecycle",
    "delete-preempted-gcp-spot",
    "[true|false]",
    help_text="After NAME, the flag without a value is true. ",
    bare_value="true",
)
@access_options.service_flag("lifecycle", "lifecycle-not-ready-time", "DURATION")
@access_options.service_flag("lifecycle", "lifecycle-evidence-time", "DURATION")
@access_options.service_flag("lifecycle", "lifecycle-start-grace", "DURATION")
@click.option("--without-talos", is_flag=True, help="Query no machine; use only Kubernetes and NATS.")
@access_options.cloud_config_option(
    "Path to the --cloud-config file of the services, with rules and ownership. Default: the ConfigMap of "
    "the chart."
)
@access_options.NATS_OPTIONS
@access_options.output_option()
def node(*, output: str, cloud_config: Path | None, **source: Any) -> None:
    """Explain the state of the Node NAME: its problems with cause and fix, the steps of its initialization,
    its ownership and providerID, the changes that the labeler would make, the evidence that its machine is
    gone, and the last messages of the services.

    A kubeconfig is enough: messages are read in the watcher's pod. With a talosconfig, the command also
    queries the Node's machine as metadata does. If another machine answers instead, it queries the machines
    of all Nodes. The verdict comes from the code of the services and the present state. Nothing is changed.

    \b
    Exit status:
      0  the Node is healthy, or is being initialized; kept keys are no problem
      1  the Node has a problem: it is blocked, not ready or being deleted, its
         providerID differs from that of its machine, its pod CIDR or
         certificate is missing, its machine is unreachable or gone, or the
         --cloud-config file is invalid
      2  unknown: no access to the cluster, no such Node, or invalid arguments

    \b
    Examples:
      talos-ccm explain node web-1
      talos-ccm explain node web-1 --cloud-config ccm-config.yaml
      talos-ccm explain node web-1 -o json | jq .verdict
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    with run_command(_PROGRESS):
        from cli.cluster.installation import find_container, read_service_settings  # noqa: PLC0415
        from cli.cluster.kube_reader import run_gathering  # noqa: PLC0415 - `--help` need not load it
        from cli.cluster.query import ObjectQuery  # noqa: PLC0415
        from cli.explain.node import output as view  # noqa: PLC0415
        from cli.explain.node.from_cluster import gather_node_evidence  # noqa: PLC0415
        from cli.explain.node.node_explanation import explain_node_evidence  # noqa: PLC0415
        from cli.lines import print_result  # noqa: PLC0415
        from cli.render.compiled_config import read_config  # noqa: PLC0415
        from libs.common.contract.services import LIFECYCLE  # noqa: PLC0415
        from services.lifecycle.settings import LifecycleSettings  # noqa: PLC0415

        file = read_config(cloud_config) if cloud_config else None
        flags = access_options.pop_flags(source, LifecycleSettings)
        evidence = run_gathering(gather_node_evidence(ObjectQuery(**source), file))
        running = find_container(evidence.snapshot.pods, LIFECYCLE)
        policy = read_service_settings(LifecycleSettings, flags, running).deletion_policy
        explanation = explain_node_evidence(evidence, policy)
        print_result(output, view.format_explanation(explanation), view.explanation_to_json(explanation))
        sys.exit(explanation.exit_status)


@explain.command(short_help="Explain what the load balancer of a Service waits for.")
@click.argument("name", metavar="[NAMESPACE/]NAME")
@click.option(
    "--namespace",
    "-n",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Namespace of the Service. One before NAME has precedence.",
)
@access_options.KUBERNETES_OPTIONS
@access_options.output_option()
def service(*, name: str, namespace: str, kubeconfig: Path | None, context: str, output: str) -> None:
    """Explain the load balancer of the Service NAME: whether an account of this controller has it, what it
    waits for, with cause and fix, its invalid annotations, its targets and the Nodes that are left out.

    A kubeconfig is enough: the Service has all that its account reports. Nothing is changed.

    \b
    Exit status:
      0  it is as desired, in progress, or belongs to another controller
      1  it has a problem
      2  unknown: no access to the cluster, no such Service, or invalid
         arguments

    \b
    Examples:
      talos-ccm explain service shop/web
      talos-ccm explain service web --namespace shop -o json
    """  # noqa: D301 - click reads the \b: the paragraph keeps its lines
    with run_command("Querying the cluster"):
        from cli.cluster.kube_reader import run_gathering  # noqa: PLC0415 - `--help` need not load it
        from cli.cluster.query import ClusterQuery  # noqa: PLC0415
        from cli.explain.service import output as view  # noqa: PLC0415
        from cli.explain.service.from_cluster import gather_service_evidence  # noqa: PLC0415
        from cli.explain.service.service_explanation import explain_service  # noqa: PLC0415
        from cli.lines import print_result  # noqa: PLC0415

        place, _, bare = name.rpartition("/")
        query = ClusterQuery(kubeconfig=kubeconfig, context=context, namespace=place or namespace)
        explanation = explain_service(run_gathering(gather_service_evidence(query, bare)))
        print_result(output, view.format_explanation(explanation), view.explanation_to_json(explanation))
        sys.exit(explanation.exit_status)
