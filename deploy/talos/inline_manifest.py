#!/usr/bin/env python3
"""Wraps Kubernetes manifests into a Talos machine config patch: control planes apply them at bootstrap.

    inline_manifest.py cloud-controller-manager-daemonset.yml > patch.yaml
    helm template ... | inline_manifest.py --document - > patch.yaml

The default is `cluster.inlineManifests`, which every Talos reads; --document a KubeInlineManifestConfig,
for Talos 1.14 and later.
"""

import argparse
import sys
import textwrap
from pathlib import Path

NAME = "talos-cloud-controller-manager"


def in_the_config(manifests: str) -> str:
    """The patch for any Talos."""
    head = f"cluster:\n  inlineManifests:\n    - name: {NAME}\n      contents: |\n"
    return head + textwrap.indent(manifests, " " * 8)


def as_a_document(manifests: str) -> str:
    """The patch for Talos 1.14 and later."""
    head = f"apiVersion: v1alpha1\nkind: KubeInlineManifestConfig\nname: {NAME}\nmanifest: |\n"
    return head + textwrap.indent(manifests, " " * 2)


def main() -> None:
    """Read, wrap, write."""
    parser = argparse.ArgumentParser(description="Wrap manifests into a Talos machine config patch.")
    parser.add_argument("file", help="Kubernetes manifests; - reads standard input")
    parser.add_argument("--document", action="store_true", help="a document of Talos 1.14 and later")
    asked = parser.parse_args()
    try:
        manifests = sys.stdin.read() if asked.file == "-" else Path(asked.file).read_text()
    except OSError as error:
        sys.exit(f"{parser.prog}: {asked.file}: {error.strerror}")
    if not manifests.strip():
        sys.exit(f"{parser.prog}: {asked.file}: there are no manifests")
    wrap = as_a_document if asked.document else in_the_config
    sys.stdout.write(wrap(manifests.rstrip("\n") + "\n"))


if __name__ == "__main__":
    main()
