"""Whether each service has its declared permissions, and none of the forbidden ones. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from cli.cluster.unavailable import Unavailable
from cli.doctor.findings import Check, Finding
from cli.doctor.required_permissions import AccessReview, get_role_paths
from cli.doctor.snapshot import InstallationSnapshot


def check_permissions(seen: InstallationSnapshot) -> Check:
    """Check the permissions by access reviews, which the API server does not store."""
    if isinstance(seen.reviews, Unavailable):
        yield Finding.unavailable("the permissions are unknown", seen.reviews)
        return ""
    results = seen.reviews.results
    missing = [each for each in results if each.is_missing]
    excess = [each for each in results if not each.is_required and each.is_allowed]
    for lacking in _group(missing, lambda each: each.namespace, lambda each: each.service):
        yield _report_role(seen, seen.reviews.existing, lacking)
    for held in _group(excess, lambda each: each.service_account):
        account = held[0].service_account
        yield Finding.wrong(
            f"ServiceAccount {account} may {_format(held)} without needing it; an attacker who "
            "controls its pod may, too",
            "remove the binding that names it or one of the groups system:serviceaccounts; to list all:",
            "kubectl get clusterrolebindings,rolebindings --all-namespaces --output wide | grep "
            f"--extended-regexp '{account}|system:serviceaccounts|system:authenticated'",
        )
    wanted = sum(each.is_required for each in results)
    return (
        f"{len({each.service_account for each in results})} ServiceAccounts have their {wanted} required "
        f"permissions, and none of the {len(results) - wanted} forbidden ones"
    )


def _group(asked: Iterable[AccessReview], *by: Callable[[AccessReview], str]) -> Iterable[list[AccessReview]]:
    groups: dict[tuple[str, ...], list[AccessReview]] = {}
    for each in asked:
        groups.setdefault(tuple(key(each) for key in by), []).append(each)
    return groups.values()


def _report_role(
    seen: InstallationSnapshot, existing: Mapping[str, bool], lacking: Sequence[AccessReview]
) -> Finding:
    """Report the permissions that one Role of the chart would grant."""
    here, namespace, account = seen.installation, lacking[0].namespace, lacking[0].service_account
    name, kind = f"{here.prefix}-{lacking[0].service}", "Role" if namespace else "ClusterRole"
    place = f"{namespace}/" if namespace else ""
    where, fix, command = f"{kind} {place}{name}", "apply {} and the rest of the chart:", here.reapply_command
    role, binding = (existing.get(path) for path in get_role_paths(here, lacking[0]))
    problem = f"{where} or its binding differs from the chart"
    if role is False:
        problem = f"{where} does not exist"
    elif binding is False:
        problem, fix = f"{kind}Binding {place}{name} does not exist", "bind {} to it:"
        command = (
            f"kubectl{f' --namespace {namespace}' if namespace else ''} create {kind.lower()}binding {name} "
            f"--{kind.lower()}={name} --serviceaccount={here.namespace}:{account}"
        )
    who = f"ServiceAccount {here.namespace}/{account}"
    return Finding.wrong(f"{who} may not {_format(lacking)}: {problem}", fix.format(where), command)


def _format(asked: Sequence[AccessReview]) -> str:
    return ", ".join(map(str, asked))
