"""The bootstrap on the real API server, with its own rights alone: what it makes, and what it may not."""

import asyncio
import itertools
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from cryptography import x509

from libs.common.bus.nats.nats_access import generate_seed, public_key_of
from libs.common.contract.services import CSR
from libs.testbed.child_process import ChildProcess
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.nats_installation import start_bootstrap
from libs.testbed.service_permissions import build_role_objects, get_collection_path, get_user_name
from services.bootstrap.resource_names import ResourceNames, list_policy_rules
from tests.bus_actors import wait_until

_numbers = itertools.count(1)


class Installation:
    """A namespace of its own, in which the bootstrap's user has the bootstrap's rights."""

    def __init__(self, control_plane: ControlPlane, kubelets: KubeletFleet, run_dir: Path) -> None:
        self.names = ResourceNames(namespace=f"nats-{next(_numbers)}", prefix="ccm")
        rules = list_policy_rules(self.names)
        self._spec = msgspec.structs.replace(CSR, service=self.names.namespace, policy_rules=rules)
        self.user = get_user_name(self._spec, "bootstrap")
        self._control_plane = control_plane
        self._kubelets = kubelets
        self._run_dir = run_dir
        self._pods = itertools.count(0)

    async def prepare(self) -> None:
        namespace = {"kind": "Namespace", "metadata": {"name": self.names.namespace}}
        await self._kubelets.send("POST", "/api/v1/namespaces", body=namespace)
        for manifest in build_role_objects(self._spec, "bootstrap"):
            await self._kubelets.send("POST", get_collection_path(manifest), body=manifest)

    def start(self, *more: str) -> tuple[ChildProcess, Path]:
        """One pod's bootstrap, and where it writes."""
        out = self._run_dir / f"pod-{next(self._pods)}"
        out.mkdir()
        names = [f"--namespace={self.names.namespace}", f"--prefix={self.names.prefix}"]
        kubeconfig = f"--kubeconfig={self._control_plane.kubeconfig(self.user)}"
        return start_bootstrap(out, [*names, kubeconfig, f"--out={out}", "--secure-port=0", *more]), out

    async def run(self, *more: str) -> Path:
        """One pod's init container to its end; where it wrote."""
        child, out = self.start(*more)
        assert await child.wait() == 0, child.tail(50)
        return out

    async def labelled(self, **labels: str) -> set[str]:
        """Secrets and ConfigMaps with such labels, without the part up to `/`."""
        selector = ",".join(
            f"app.kubernetes.io/{key.replace('_', '-')}={value}" for key, value in labels.items()
        )
        found = set()
        for kind in ("secrets", "configmaps"):
            path = f"/api/v1/namespaces/{self.names.namespace}/{kind}?labelSelector={quote(selector)}"
            items = (await self._kubelets.request("GET", path)).body["items"]
            found |= {f"{kind}/{item['metadata']['name']}" for item in items}
        return found

    async def secrets(self) -> dict[str, dict[str, str]]:
        """By name."""
        path = f"/api/v1/namespaces/{self.names.namespace}/secrets"
        items = (await self._kubelets.request("GET", path)).body["items"]
        return {item["metadata"]["name"]: item["data"] for item in items}

    async def make_as_an_older_release(self) -> str:
        """A Secret and the ConfigMap without the installation's label; what the Secret is called."""
        labels, name = {"app.kubernetes.io/managed-by": "talos-ccm-bootstrap"}, self.names.seed_secret("csr")
        seed = b64encode(generate_seed()).decode()
        secret = {"kind": "Secret", "metadata": {"name": name, "labels": labels}, "data": {"seed.nk": seed}}
        published = {"name": self.names.authority, "labels": labels}
        root = f"/api/v1/namespaces/{self.names.namespace}"
        await self._kubelets.send("POST", f"{root}/secrets", body=secret)
        body = {"kind": "ConfigMap", "metadata": published}
        await self._kubelets.send("POST", f"{root}/configmaps", body=body)
        return f"secrets/{name}"

    async def published_authority(self) -> str:
        path = f"/api/v1/namespaces/{self.names.namespace}/configmaps/{self.names.authority}"
        return str((await self._kubelets.request("GET", path)).body["data"]["ca.crt"])

    async def delete(self, name: str) -> None:
        """A Secret, as an operator does."""
        path = f"/api/v1/namespaces/{self.names.namespace}/secrets/{name}"
        assert (await self._kubelets.request("DELETE", path)).status == 200

    async def may(self, verb: str, resource: str, name: str = "", namespace: str | None = None) -> bool:
        """Whether the API server says that the bootstrap's user may do that."""
        attributes = {"verb": verb, "resource": resource, "name": name}
        attributes["namespace"] = self.names.namespace if namespace is None else namespace
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": self.user, "resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool((await self._kubelets.request("POST", path, body=review)).body["status"]["allowed"])


@pytest.fixture
async def installation(
    control_plane: ControlPlane, kubelets: KubeletFleet, tmp_path: Path
) -> AsyncIterator[Installation]:
    made = Installation(control_plane, kubelets, tmp_path)
    await made.prepare()
    yield made
    await kubelets.request("DELETE", f"/api/v1/namespaces/{made.names.namespace}")


async def test_a_fresh_namespace_gets_a_key_for_everybody_and_an_authority(installation: Installation):
    out = await installation.run()
    secrets = await installation.secrets()
    assert secrets.keys() == {f"ccm-nats-{name}" for name in (*installation.names.users, "ca")}
    seeds = [b64decode(secrets[f"ccm-nats-{user}"]["seed.nk"]) for user in installation.names.users]
    assert len(set(seeds)) == len(installation.names.users)
    assert all(seed.startswith(b"SU") for seed in seeds)
    authority = await installation.published_authority()
    assert b64decode(secrets["ccm-nats-ca"]["tls.crt"]).decode() == authority
    served = x509.load_pem_x509_certificate((out / "tls.crt").read_bytes())
    served.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.encode()))
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    service = f"ccm-nats.{installation.names.namespace}.svc"
    assert service in names.get_values_for_type(x509.DNSName)


async def test_what_is_made_bears_the_installations_label_and_what_an_older_release_made_is_used_as_it_is(
    installation: Installation,
):
    unlabelled = await installation.make_as_an_older_release()
    out = await installation.run("--instance=mine")
    made = {f"secrets/{name}" for name in installation.names.secrets} | {
        f"configmaps/{installation.names.authority}"
    }
    assert await installation.labelled(managed_by="talos-ccm-bootstrap", instance="mine") == made - {
        unlabelled
    }
    assert await installation.labelled(instance="another") == set()
    (seed,) = (await installation.secrets())[unlabelled.removeprefix("secrets/")].values()
    assert public_key_of(b64decode(seed)) in users(out)


async def test_three_pods_that_start_at_once_agree(installation: Installation):
    outs = await asyncio.gather(*(installation.run() for _ in range(3)))
    assert len({(out / "ca.crt").read_bytes() for out in outs}) == 1
    assert len({tuple(users(out)) for out in outs}) == 1
    assert len({(out / "tls.key").read_bytes() for out in outs}) == 3, "each has a key of its own"
    published = await installation.published_authority()
    assert published.encode() == (outs[0] / "ca.crt").read_bytes()


def users(out: Path) -> list[str]:
    """Public keys in a server's configuration, but that of its own system account."""
    config = json.loads((out / "nats.conf").read_text().partition("\n")[2])
    return [user["nkey"] for user in config["accounts"]["TALOSCCM"]["users"]]


async def test_deleted_secrets_are_made_anew_by_the_sidecar(installation: Installation):
    out = await installation.run()
    before = await installation.secrets()
    sidecar, _ = installation.start(f"--out={out}", "--keep", "--check-interval=200ms")
    await installation.delete("ccm-nats-labeler")
    await installation.delete("ccm-nats-ca")

    async def all_there() -> bool:
        secrets = await installation.secrets()
        published = (await installation.published_authority()).encode()
        return (
            secrets.keys() == before.keys()
            and b64decode(secrets["ccm-nats-ca"]["tls.crt"]) == published == (out / "ca.crt").read_bytes()
        )

    await wait_until(all_there, sidecar.tail(50))
    await sidecar.stop()
    after = await installation.secrets()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"ccm-nats-labeler", "ccm-nats-ca"}


async def test_the_bootstrap_may_read_its_own_and_change_no_secret(installation: Installation):
    own = installation.names.secrets
    for name in own:
        assert await installation.may("get", "secrets", name)
    assert not await installation.may("get", "secrets", "another")
    for verb in ("list", "watch", "update", "patch", "delete", "deletecollection"):
        assert not await installation.may(verb, "secrets", own[0]), verb
        assert not await installation.may(verb, "secrets"), verb
    assert not await installation.may("get", "secrets", own[0], namespace="default")
    assert not await installation.may("create", "secrets", namespace="default")
    for verb in ("get", "update"):
        assert await installation.may(verb, "configmaps", installation.names.authority)
        assert not await installation.may(verb, "configmaps", "another")
    assert not await installation.may("delete", "configmaps", installation.names.authority)
    for resource in ("serviceaccounts", "pods", "nodes", "roles"):
        for verb in ("get", "list", "create", "update"):
            assert not await installation.may(verb, resource), (verb, resource)


async def test_what_it_is_not_permitted_is_told_and_tried_again(
    installation: Installation, control_plane: ControlPlane, tmp_path: Path
):
    stranger = control_plane.kubeconfig("a-stranger")
    child, out = installation.start(f"--kubeconfig={stranger}")
    await wait_until(lambda: "forbidden" in child.log.read_text().lower(), "the right that is missing")
    assert child.is_running
    assert not (out / "nats.conf").exists()
    await child.stop()
    assert child.process.returncode == 0
