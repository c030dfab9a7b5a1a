"""Whether each service has its declared permissions, and none of the forbidden ones. Pure."""

from collections.abc import Iterator, Sequence

from cli.cluster.unavailable import Unavailable
from cli.doctor.findings import Finding, report_ok, report_unavailable, report_unknown, report_wrong
from cli.doctor.required_permissions import (
    AccessReviewRequest,
    AccessReviewResult,
    get_role_name,
    get_role_paths,
)
from cli.doctor.snapshot import InstallationSnapshot


def check_permissions(seen: InstallationSnapshot) -> Iterator[Finding]:
    """Check the permissions by access reviews, which the API server does not store."""
    if isinstance(seen.reviews, Unavailable):
        yield report_unavailable("the permissions are unknown", seen.reviews)
        return
    reviewed = seen.reviews.results
    missing = [each.request for each in reviewed if each.is_missing]
    excess = [each.request for each in reviewed if not each.request.is_required and each.is_allowed]
    yield from _report_missing(seen, missing)
    yield from _report_excess(excess)
    yield from _report_unknown([each for each in reviewed if each.error])
    if not missing and not excess:
        asked = [each for each in reviewed if not each.error]
        accounts = len({each.request.service_account for each in asked})
        wanted = sum(each.request.is_required for each in asked)
        if asked:
            yield report_ok(
                f"{accounts} ServiceAccounts have their {wanted} required permissions, and none of the "
                f"{len(asked) - wanted} forbidden ones"
            )


def _report_missing(seen: InstallationSnapshot, missing: Sequence[AccessReviewRequest]) -> Iterator[Finding]:
    """Yield one finding per Role."""
    by_role: dict[tuple[str, str], list[AccessReviewRequest]] = {}
    for asked in missing:
        by_role.setdefault((asked.namespace, get_role_name(seen.installation, asked)), []).append(asked)
    for (namespace, name), lacking in by_role.items():
        yield _report_role(seen, namespace, name, lacking)


def _report_role(
    seen: InstallationSnapshot, namespace: str, name: str, lacking: Sequence[AccessReviewRequest]
) -> Finding:
    installation = seen.installation
    account = f"{installation.namespace}:{lacking[0].service_account}"
    whose = f"ServiceAccount {installation.namespace}/{lacking[0].service_account}"
    told = f"{whose} may not {_format_permission(lacking)}"
    role, binding = get_role_paths(installation, lacking[0])
    kind = "Role" if namespace else "ClusterRole"
    where = f"{kind} {namespace + '/' if namespace else ''}{name}"
    there = {} if isinstance(seen.reviews, Unavailable) else seen.reviews.existing
    if there.get(role) is False:
        return report_wrong(
            f"{told}: {where} does not exist",
            f"apply {where} and the rest of the chart:",
            installation.reapply_command,
        )
    if there.get(binding) is False:
        place = f" --namespace {namespace}" if namespace else ""
        return report_wrong(
            f"{told}: {kind}Binding {namespace + '/' if namespace else ''}{name} does not exist",
            f"bind {where} to it:",
            f"kubectl{place} create {kind.lower()}binding {name} --{kind.lower()}={name} "
            f"--serviceaccount={account}",
        )
    return report_wrong(
        f"{told}: {where} or its binding differs from the chart",
        f"apply {where} and the rest of the chart:",
        installation.reapply_command,
    )


def _report_excess(excess: Sequence[AccessReviewRequest]) -> Iterator[Finding]:
    by_account: dict[str, list[AccessReviewRequest]] = {}
    for asked in excess:
        by_account.setdefault(asked.service_account, []).append(asked)
    for account, held in by_account.items():
        yield report_wrong(
            f"ServiceAccount {account} may {_format_permission(held)} without needing it; an attacker who "
            "controls its pod may, too",
            "remove the binding that names it or one of the groups system:serviceaccounts; to list all:",
            "kubectl get clusterrolebindings,rolebindings --all-namespaces --output wide | grep "
            f"--extended-regexp '{account}|system:serviceaccounts|system:authenticated'",
        )


def _report_unknown(unasked: Sequence[AccessReviewResult]) -> Iterator[Finding]:
    if unasked:
        accounts = sorted({each.request.service_account for each in unasked})
        yield report_unknown(
            f"the permissions of {', '.join(accounts)} are unknown: {unasked[0].error}",
            "use credentials that may create subjectaccessreviews",
            "kubectl auth can-i create subjectaccessreviews.authorization.k8s.io",
        )


def _format_permission(asked: Sequence[AccessReviewRequest]) -> str:
    return ", ".join(map(str, asked))
