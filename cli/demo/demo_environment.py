"""The commands that the demo suggests, and the environment file with which they run as printed."""

import shlex
import shutil
import sysconfig
from pathlib import Path

from cli.demo.demo_cloud import SERVICES
from cli.demo.demo_cluster import DemoCluster
from cli.demo.demo_options import DemoOptions

_EXAMPLE_RULES = """\
# An example for `talos-ccm render`: the services of this demo do not read it, so an edit changes no node.
# For rules that apply to the nodes: make demo ARGS="--cloud-config=FILE"
transformations:
  - name: zone
    labels:
      example.com/zone: "{{ .Zone }}"
"""


def write_environment(options: DemoOptions, parts: DemoCluster, run_dir: Path) -> None:
    """Write `env` into the directory, for a shell to source, and the files that the commands name."""
    variables = {
        "DEMO": str(run_dir),
        "KUBECONFIG": str(parts.api_server.kubeconfig().resolve()),
        "TALOSCONFIG": str(parts.machines.write_talosconfig().resolve()),
        # As in a real cluster, the commands query NATS in the watcher's Pod, if there is one.
        "NATS_URL": parts.nats.url if parts.nats and not parts.pods else "",
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    lines.append(f'export PATH={shlex.quote(sysconfig.get_path("scripts"))}:"$PATH"')
    (run_dir / "env").write_text("\n".join(lines) + "\n")
    rules = run_dir / "rules.yaml"
    if options.cloud_config:
        rules.symlink_to(options.cloud_config)
    else:
        rules.write_text(_EXAMPLE_RULES)


def list_commands(
    options: DemoOptions, parts: DemoCluster, run_dir: Path, node: str
) -> list[tuple[str, str]]:
    """Return the commands, such as those about `node`, except those of programs that are not installed."""
    rows = [("first", f". {shlex.quote(str(run_dir / 'env'))}")]
    if parts.pods or parts.nats:
        rows.append(("status", "talos-ccm status --watch"))
    if parts.pods:
        rows.append(("doctor", "talos-ccm doctor"))
        rows.append(("balancer", f"talos-ccm explain service {SERVICES[0]}"))
    rows += [
        ("why", f"talos-ccm explain node {node}"),
        ("", f"talos-ccm explain csr {node} --node"),
        ("render", f"talos-ccm render $DEMO/rules.yaml --from-cluster {node}"),
        ("nodes", "kubectl get nodes -L topology.kubernetes.io/zone"),
        ("csr", "kubectl get csr"),
        ("logs", "tail -f $DEMO/services/*.log"),
        *((name, f"curl http://127.0.0.1:{port}/metrics") for name, port in parts.services.ports.items()),
    ]
    if parts.nats:
        rows.append(("messages", f"nats --server {parts.nats.url} sub 'talosccm.v1.>'"))
    installed = {program: shutil.which(program) for program in ("kubectl", "curl", "nats")}
    rows = [row for row in rows if installed.get(row[1].split()[0], "here")]
    if options.cloud_config:
        rows.append(("rules", f"edit {options.cloud_config}: all nodes follow within 15 s"))
    return rows
