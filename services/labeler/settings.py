"""The settings of the labeler, and the cluster config that results from them and --cloud-config."""

from typing import Annotated, Final

import msgspec

from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.kubernetes_names import label_value_problem
from libs.common.cloud_config.model import CloudConfig, Finding
from libs.common.contract.controllers import CLOUD_NODE
from libs.common.settings import flags
from libs.common.settings.cloud_config_reloader import CloudConfigSettings
from services.labeler.core.plan.plan import ClusterConfig
from services.labeler.core.rules.compilation import RulesError, collect_findings, compile_rules

# The flag alone: the labeler reloads --cloud-config when it changes, and the file's name takes precedence.
_CLUSTER_NAME: Final = msgspec.structs.replace(flags.CLUSTER_NAME, config="")
_UNUSED_NAME: Final = (
    f"--{flags.CLUSTER_NAME.name} has no effect without --{flags.CLUSTER_NAME_FALLBACKS.name}, as in the "
    "reference controller; set global.clusterName of the --cloud-config file instead"
)


class LabelerSettings(CloudConfigSettings, frozen=True, kw_only=True):
    """The settings of the labeler."""

    cluster_name: Annotated[str, _CLUSTER_NAME] = ""
    cluster_name_fallbacks: Annotated[bool, flags.CLUSTER_NAME_FALLBACKS] = False
    metadata_accounts: Annotated[tuple[str, ...], flags.CLOUD_METADATA_ACCOUNTS] = ()
    # After a change of the file, each replica starts its rollout after a random delay of up to this time.
    rollout_spread_seconds: float = 5.0
    # The labeler stops writing after this time without a leader heartbeat: another leader may be active.
    leader_silence_seconds: Annotated[float, flags.RENEW_DEADLINE] = 10.0
    in_flight: Annotated[
        int,
        flags.Flag(
            "labeler-in-flight",
            "Nodes written at the same time.",
            flags.NODES,
            at_least=1,
        ),
    ] = 64

    def problems(self) -> tuple[str, ...]:
        """Return the mistakes that concern several settings or the file, one sentence each."""
        problems = (
            *_find_cluster_name_problems(self._fallback_cluster_name),
            *flags.find_metadata_account_problems(self.metadata_accounts),
        )
        try:
            self.build_config(self.file)
        except RulesError as error:
            return problems + self.format_findings(error.findings)
        return problems

    def warnings(self) -> tuple[str, ...]:
        """Return what has no effect: --cluster-name alone, and templates that read unknown fields."""
        unused = (_UNUSED_NAME,) if self.cluster_name and not self.cluster_name_fallbacks else ()
        try:
            return unused + self.format_findings(compile_rules(self.file).warnings)
        except RulesError:
            return unused

    @property
    def _fallback_cluster_name(self) -> str:
        """The cluster name if the file has none; "" means the name in a machine's facts."""
        return self.cluster_name if self.cluster_name_fallbacks else ""

    @property
    def config(self) -> ClusterConfig:
        """The cluster config at the start. Raises RulesError."""
        return self.build_config(self.file)

    def build_config(self, file: CloudConfig | CloudConfigError) -> ClusterConfig:
        """Build the cluster config of a file. Raises RulesError with all mistakes of the file.

        A megabyte of templates takes a second.
        """
        if isinstance(file, CloudConfigError):
            raise RulesError(collect_findings(file))
        return ClusterConfig(
            cluster_name=self._fallback_cluster_name if file.cluster_name is None else file.cluster_name,
            prefer_ipv6=bool(file.prefer_ipv6),
            external_ips=file.external_ips,
            rules=compile_rules(file),
            ownership=file.ownership.for_controller(CLOUD_NODE),
        )

    def format_findings(self, findings: tuple[Finding, ...]) -> tuple[str, ...]:
        """Format the findings about the file, one sentence each."""
        return tuple(
            f"--{flags.CLOUD_CONFIG.name}: {finding.format(str(self.cloud_config))}" for finding in findings
        )


def _find_cluster_name_problems(name: str) -> tuple[str, ...]:
    if not label_value_problem(name):
        return ()
    problem = (
        f"--cluster-name: {name!r} is not a valid label value: up to 63 letters, digits, '-', '_' and '.', "
        "with a letter or digit at both ends"
    )
    return (problem,)
