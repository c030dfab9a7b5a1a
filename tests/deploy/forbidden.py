"""Actions that must be forbidden to each of our accounts."""

from typing import Final

from libs.testbed.helm.chart import NAMESPACE
from libs.testbed.helm.chart import RELEASE as PREFIX
from tests.deploy.accounts import Try

RBAC: Final = "rbac.authorization.k8s.io"
APPS: Final = "apps"
COORDINATION: Final = "coordination.k8s.io"
CERTIFICATES: Final = "certificates.k8s.io"

NEVER: Final = (
    *(
        Try("", "serviceaccounts/token", "create", name, NAMESPACE)
        for name in ("default", f"{PREFIX}-lifecycle")
    ),
    *(
        Try("", "serviceaccounts", verb, namespace=NAMESPACE)
        for verb in ("list", "create", "deletecollection")
    ),
    *(Try("", "secrets", verb) for verb in ("list", "watch")),
    *(Try("", "secrets", verb, namespace=NAMESPACE) for verb in ("list", "watch", "deletecollection")),
    *(
        Try("", "secrets", verb, f"{PREFIX}-nats-labeler", NAMESPACE)
        for verb in ("update", "patch", "delete")
    ),
    *(Try("", "secrets", "get", name, NAMESPACE) for name in ("another", f"{PREFIX}-talos-secrets")),
    Try("", "secrets", "create", namespace="default"),
    Try("", "configmaps", "list"),
    Try("", "configmaps", "create", namespace="default"),
    *(
        Try("", "configmaps", verb, name, NAMESPACE)
        for name in ("kube-root-ca.crt", "coredns", PREFIX)
        for verb in ("get", "update", "patch", "delete")
    ),
    Try("", "configmaps", "list", namespace=NAMESPACE),
    *(Try("", "pods", verb, namespace=NAMESPACE) for verb in ("get", "list", "create", "delete")),
    *(
        Try("", f"pods/{what}", "create", "etcd", NAMESPACE)
        for what in ("exec", "attach", "eviction", "binding")
    ),
    *(Try("", "nodes", verb) for verb in ("create", "update", "deletecollection")),
    *(Try("", f"nodes/{what}", "get", "cp") for what in ("proxy", "log", "metrics")),
    *(Try("", "namespaces", verb) for verb in ("list", "create", "delete")),
    *(Try("", "events", verb, namespace=NAMESPACE) for verb in ("create", "list")),
    *(Try("", "events", verb, namespace="default") for verb in ("list", "patch", "delete")),
    *(Try("", "services", verb, "kubernetes", "default") for verb in ("get", "update", "delete")),
    *(
        Try(RBAC, kind, verb)
        for kind in ("clusterroles", "clusterrolebindings")
        for verb in ("list", "create", "patch")
    ),
    *(
        Try(RBAC, kind, verb, namespace=NAMESPACE)
        for kind in ("roles", "rolebindings")
        for verb in ("list", "create")
    ),
    *(
        Try(APPS, "daemonsets", verb, "kube-proxy", NAMESPACE)
        for verb in ("get", "create", "patch", "delete")
    ),
    *(
        Try(COORDINATION, "leases", verb, "kube-controller-manager", NAMESPACE)
        for verb in ("get", "update", "patch", "delete")
    ),
    *(Try(COORDINATION, "leases", verb, "cp", "kube-node-lease") for verb in ("get", "update", "delete")),
    *(
        Try(CERTIFICATES, "certificatesigningrequests", verb)
        for verb in ("create", "get", "update", "delete")
    ),
    *(Try(CERTIFICATES, "certificatesigningrequests/status", verb) for verb in ("update", "patch")),
    Try(CERTIFICATES, "certificatesigningrequests/approval", "update"),
    Try("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "create"),
    Try("apiextensions.k8s.io", "customresourcedefinitions", "create"),
    Try("authentication.k8s.io", "tokenreviews", "create"),
    Try("authorization.k8s.io", "subjectaccessreviews", "create"),
)
