"""deploy/talos: both forms of the machine config patches are equivalent, and Talos' own code accepts them."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.testbed.control_plane.build import GoProgram, build_program
from tests.architecture.sources import ROOT

PATCHES = ROOT / "deploy" / "talos"
MANIFEST = ROOT / "deploy" / "k8s" / "manifests" / "cloud-controller-manager-daemonset.yml"
TALOS_CONFIG = GoProgram("talos-config", Path(__file__).parent / "talos_config")
ROTATION = {"rotate-server-certificates": "true"}
EXTERNAL = {"externalCloudProvider": {"enabled": True}}
ACCESS = {"allowedRoles": ["os:reader"], "allowedKubernetesNamespaces": ["kube-system"]}
VERSIONS = ("v1.11", "v1.12", "v1.13")  # the config versions that the linked Talos can generate


def documents(name: str) -> dict[str, Any]:
    """The documents of a patch by kind; "" is the one with `machine` and `cluster`."""
    text = (PATCHES / name).read_text()
    return {document.pop("kind", ""): document for document in yaml.safe_load_all(text)}


def content_of(name: str) -> dict[str, Any]:
    """The content of a patch in either form, as Talos 1.14 maps one to the other."""
    kinds = documents(name)
    machine, cluster = kinds.get("", {}).get("machine", {}), kinds.get("", {}).get("cluster", {})
    access = machine.get("features", {}).get("kubernetesTalosAPIAccess", {})
    content = {
        "kubelet": machine.get("kubelet") or kinds.get("KubeletConfig"),
        "access": ACCESS if access == {"enabled": True, **ACCESS} else kinds.get("KubeTalosAPIAccessConfig"),
        "controller-manager": cluster.pop("controllerManager", None)
        or kinds.get("KubeControllerManagerConfig"),
        "cluster": cluster,
    }
    for part in content.values():
        part and part.pop("apiVersion", None)
    return content


@pytest.mark.parametrize("patch", ["worker-patch", "controlplane-patch", "pod-cidrs-patch"])
def test_the_old_and_the_new_form_are_equivalent(patch: str):
    assert content_of(f"{patch}.yaml") == content_of(f"{patch}-1.14.yaml")
    assert any(content_of(f"{patch}.yaml").values())


def test_the_new_form_keeps_only_keys_without_a_document_at_their_old_place():
    for name in ("worker-patch-1.14.yaml", "controlplane-patch-1.14.yaml"):
        kinds = documents(name)
        assert kinds.pop("") == {"cluster": EXTERNAL}
        assert {each["apiVersion"] for each in kinds.values()} == {"v1alpha1"}
    assert set(documents("pod-cidrs-patch-1.14.yaml")) == {"KubeControllerManagerConfig"}


def test_the_service_account_requests_the_role_and_namespace_that_the_patches_allow():
    (account,) = yaml.safe_load_all((PATCHES / "serviceaccount.yaml").read_text())
    assert (account["apiVersion"], account["kind"]) == ("talos.dev/v1alpha1", "ServiceAccount")
    assert account["spec"] == {"roles": ACCESS["allowedRoles"]}
    assert [account["metadata"]["namespace"]] == ACCESS["allowedKubernetesNamespaces"]
    rendered = [each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] == "ServiceAccount"]
    names = {each["metadata"]["name"] for each in rendered if each["apiVersion"] == account["apiVersion"]}
    assert len(names) == 1
    assert account["metadata"]["name"] not in names, "with the same name the chart would take it over"


def wrapped(*arguments: str, given: str | None = None) -> str:
    """The output of the script for manifests."""
    script = [sys.executable, "-I", str(PATCHES / "inline_manifest.py"), *arguments]
    return subprocess.run(script, input=given, check=True, capture_output=True, text=True).stdout


def test_an_inline_manifest_contains_the_manifest_in_both_forms():
    text = MANIFEST.read_text()
    old, new = yaml.safe_load(wrapped(str(MANIFEST))), yaml.safe_load(wrapped("--document", "-", given=text))
    name = "talos-cloud-controller-manager"
    assert old == {"cluster": {"inlineManifests": [{"name": name, "contents": text}]}}
    assert new == {
        "apiVersion": "v1alpha1",
        "kind": "KubeInlineManifestConfig",
        "name": name,
        "manifest": text,
    }


def test_a_missing_file_is_named_without_a_traceback():
    with pytest.raises(subprocess.CalledProcessError) as caught:
        wrapped("missing.yaml")
    assert caught.value.stderr == "inline_manifest.py: missing.yaml: No such file or directory\n"


def test_an_empty_manifest_is_rejected():
    with pytest.raises(subprocess.CalledProcessError) as failed:
        wrapped("-", given="\n")
    assert "there are no manifests" in failed.value.stderr


async def patched(role: str, version: str, *patches: Path) -> tuple[dict[str, Any], str]:
    """Generate, patch and validate a machine config with Talos; ({}, the errors) if it is invalid."""
    argv: list[str | Path] = [await build_program(TALOS_CONFIG), role, version, *patches]
    ran = await asyncio.to_thread(lambda: subprocess.run(argv, capture_output=True, text=True, check=False))
    config = yaml.safe_load_all(ran.stdout)
    return (next(iter(config)) if ran.returncode == 0 else {}), ran.stderr


@pytest.mark.parametrize("version", VERSIONS)
async def test_talos_accepts_the_patches_of_control_planes(version: str, tmp_path: Path):
    inline = tmp_path / "inline.yaml"
    inline.write_text(wrapped(str(MANIFEST)))
    names = ("controlplane-patch.yaml", "pod-cidrs-patch.yaml")
    config, words = await patched("controlplane", version, *(PATCHES / name for name in names), inline)
    assert config, words
    assert words == ""
    machine, cluster = config["machine"], config["cluster"]
    assert machine["kubelet"]["extraArgs"] == ROTATION
    assert machine["features"]["kubernetesTalosAPIAccess"] == {"enabled": True, **ACCESS}
    assert cluster["externalCloudProvider"] == {"enabled": True}
    controllers = cluster["controllerManager"]["extraArgs"]["controllers"].split(",")
    assert "-node-ipam-controller" in controllers
    (manifest,) = cluster["inlineManifests"]
    assert manifest["contents"] == MANIFEST.read_text()


@pytest.mark.parametrize("version", VERSIONS)
async def test_talos_accepts_the_patch_of_workers(version: str):
    config, words = await patched("worker", version, PATCHES / "worker-patch.yaml")
    assert config, words
    assert words == ""
    assert config["machine"]["kubelet"]["extraArgs"] == ROTATION
    assert config["cluster"]["externalCloudProvider"] == {"enabled": True}


async def test_talos_rejects_control_plane_patches_for_workers_and_the_new_form_before_1_14():
    config, words = await patched("worker", "v1.13", PATCHES / "controlplane-patch.yaml")
    assert not config
    assert "Talos API Access can only be enabled on control plane machines" in words
    config, words = await patched("worker", "v1.13", PATCHES / "worker-patch-1.14.yaml")
    assert not config
    assert '"KubeletConfig" "v1alpha1": not registered' in words
