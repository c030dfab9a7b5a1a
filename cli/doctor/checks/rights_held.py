"""Does each service have the rights that it declares, and none that it must not have? Pure."""

from collections.abc import Iterator, Sequence

from cli.doctor.findings import Finding, ok, unknown, wrong
from cli.doctor.installation import Installation
from cli.doctor.rights import Asked, Reviewed, as_told
from cli.doctor.seen import NotSeen, Seen

_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def rights(seen: Seen) -> Iterator[Finding]:
    """By SubjectAccessReviews, which store nothing."""
    if isinstance(seen.reviews, NotSeen):
        told = seen.reviews
        yield unknown(f"nobody's rights are known: {told.why}", told.fix, *told.commands)
        return
    reviewed = list(seen.reviews)
    missing = [each.asked for each in reviewed if each.asked.wanted and not each.allowed and not each.why_not]
    excess = [each.asked for each in reviewed if not each.asked.wanted and each.allowed]
    yield from _missing(seen, missing)
    yield from _excess(excess)
    yield from _unknown([each for each in reviewed if each.why_not])
    if not missing and not excess:
        asked = [each for each in reviewed if not each.why_not]
        accounts = len({each.asked.account for each in asked})
        wanted = sum(each.asked.wanted for each in asked)
        if asked:
            yield ok(f"{accounts} ServiceAccounts have the {wanted} rights that they need, and none of "
                     f"{len(asked) - wanted} that they must not have")  # fmt: skip


def role_name(installation: Installation, asked: Asked) -> str:
    """What the chart calls the Role and its binding. In the one process, each service has its own."""
    service = asked.service or _service_with(installation, asked)
    return f"{installation.prefix}-{service}"


def paths_of(installation: Installation, asked: Asked) -> tuple[str, str]:
    """Where the API server has the Role (or ClusterRole) of that right, and its binding."""
    name = role_name(installation, asked)
    if asked.namespace:
        place = f"{_RBAC}/namespaces/{asked.namespace}"
        return f"{place}/roles/{name}", f"{place}/rolebindings/{name}"
    return f"{_RBAC}/clusterroles/{name}", f"{_RBAC}/clusterrolebindings/{name}"


def _service_with(installation: Installation, asked: Asked) -> str:
    for process in installation.processes:
        for wiring in process.services:
            for right in (as_told(process, each) for each in wiring.policy_rules):
                if (right.group, right.resource, right.namespace) == (
                    asked.group, asked.resource, asked.namespace
                ) and asked.verb in right.verbs:  # fmt: skip
                    return wiring.service
    return "watcher"


def _missing(seen: Seen, missing: Sequence[Asked]) -> Iterator[Finding]:
    """One for each Role."""
    by_role: dict[tuple[str, str], list[Asked]] = {}
    for asked in missing:
        by_role.setdefault((asked.namespace, role_name(seen.installation, asked)), []).append(asked)
    for (namespace, name), lacking in by_role.items():
        yield _of_role(seen, namespace, name, lacking)


def _of_role(seen: Seen, namespace: str, name: str, lacking: Sequence[Asked]) -> Finding:
    installation = seen.installation
    account = f"{installation.namespace}:{lacking[0].account}"
    whose = f"ServiceAccount {installation.namespace}/{lacking[0].account}"
    told = f"{whose} may not {_list(lacking)}"
    role, binding = paths_of(installation, lacking[0])
    kind = "Role" if namespace else "ClusterRole"
    where = f"{kind} {namespace + '/' if namespace else ''}{name}"
    there = seen.objects_there
    if there.get(role) is False:
        return wrong(
            f"{told}: there is no {where}", f"apply {where}, with the rest:", installation.apply_again
        )
    if there.get(binding) is False:
        place = f" --namespace {namespace}" if namespace else ""
        return wrong(
            f"{told}: there is no {kind}Binding {namespace + '/' if namespace else ''}{name}",
            f"bind {where} to it:",
            f"kubectl{place} create {kind.lower()}binding {name} --{kind.lower()}={name} "
            f"--serviceaccount={account}",
        )
    return wrong(
        f"{told}: {where} or its binding is not as the chart has it",
        f"apply {where}, with the rest:",
        installation.apply_again,
    )


def _excess(excess: Sequence[Asked]) -> Iterator[Finding]:
    by_account: dict[str, list[Asked]] = {}
    for asked in excess:
        by_account.setdefault(asked.account, []).append(asked)
    for account, held in by_account.items():
        yield wrong(
            f"ServiceAccount {account} may {_list(held)}, which it has no need of: whoever takes "
            "over its pod, "
            "may, too",
            "take away the binding that names it, or one of the groups system:serviceaccounts; all "
            "of them show",
            "kubectl get clusterrolebindings,rolebindings --all-namespaces --output wide "
            f"| grep --extended-regexp '{account}|system:serviceaccounts|system:authenticated'",
        )


def _unknown(unasked: Sequence[Reviewed]) -> Iterator[Finding]:
    if unasked:
        accounts = sorted({each.asked.account for each in unasked})
        yield unknown(
            f"the rights of {', '.join(accounts)} are not known: {unasked[0].why_not}",
            "ask as somebody who may create subjectaccessreviews",
            "kubectl auth can-i create subjectaccessreviews.authorization.k8s.io",
        )


def _list(asked: Sequence[Asked]) -> str:
    return ", ".join(map(str, asked))
