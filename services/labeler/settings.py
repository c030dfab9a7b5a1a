"""What the labeler can be told."""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.model import CloudConfig, Finding
from libs.common.contract.controllers import CLOUD_NODE
from libs.common.settings.flags import (
    CLOUD_CONFIG,
    CLUSTER_NAME,
    CLUSTER_NAME_FALLBACKS,
    NODES,
    OBSERVE_ONLY,
    RENEW_DEADLINE,
    Flag,
)
from services.labeler.labels import is_label_value
from services.labeler.plan import ClusterConfig
from services.labeler.rules import RulesError, collect_findings, compile_rules

# What the file says is read again whenever it changes: here is only what counts when it says nothing.
_CLUSTER_NAME: Final = msgspec.structs.replace(CLUSTER_NAME, config="")
_UNUSED_NAME: Final = (
    f"--{CLUSTER_NAME.name} has no effect without --{CLUSTER_NAME_FALLBACKS.name}, as in the Talos cloud "
    "controller manager; global.clusterName of the --cloud-config file has"
)


class InvalidConfigError(Exception):
    """What the file and the flags say cannot be obeyed."""

    def __init__(self, mistakes: tuple[str, ...]) -> None:
        self.mistakes = mistakes  # one sentence each
        super().__init__("; ".join(mistakes))


class LabelerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the labeler can be told."""

    observe_only: Annotated[bool, OBSERVE_ONLY] = False
    cluster_name: Annotated[str, _CLUSTER_NAME] = ""
    cluster_name_fallbacks: Annotated[bool, CLUSTER_NAME_FALLBACKS] = False
    cloud_config: Annotated[Path | None, CLOUD_CONFIG] = None
    # The content of that file at the start.
    file: CloudConfig = CloudConfig()
    # A new content counts after two looks.
    cloud_config_poll_seconds: float = 1.0
    # With another file, all Nodes are looked at again within that time: replicas rarely do so at once.
    rollout_spread_seconds: float = 5.0
    # Nothing is written while no leader has been heard for that long: another one may be at work elsewhere.
    leader_silence_seconds: Annotated[float, RENEW_DEADLINE] = 10.0
    in_flight: Annotated[
        int,
        Flag(
            "labeler-in-flight",
            "Nodes written at the same time.",
            NODES,
            at_least=1,
        ),
    ] = 64

    def problems(self) -> tuple[str, ...]:
        """What the single fields cannot tell."""
        about_name = _find_cluster_name_problems(self._fallback_cluster_name)
        try:
            self.build_config(self.file)
        except InvalidConfigError as error:
            return about_name + error.mistakes
        return about_name

    def warnings(self) -> tuple[str, ...]:
        """What has no effect: --cluster-name alone, and parts of templates."""
        unused = (_UNUSED_NAME,) if self.cluster_name and not self.cluster_name_fallbacks else ()
        try:
            return unused + self.format_findings(compile_rules(self.file).warnings)
        except RulesError:
            return unused

    @property
    def _fallback_cluster_name(self) -> str:
        """The cluster's name where the file has none; "" = the one in a machine's facts."""
        return self.cluster_name if self.cluster_name_fallbacks else ""

    @property
    def config(self) -> ClusterConfig:
        """What holds for every Node at the start. Raises InvalidConfigError."""
        return self.build_config(self.file)

    def evaluate(self, found: CloudConfig | CloudConfigError) -> tuple[ClusterConfig, tuple[str, ...]]:
        """The configuration of that file content, and warnings. Raises InvalidConfigError with all mistakes.

        Takes a second for a megabyte of templates.
        """
        if isinstance(found, CloudConfigError):
            raise InvalidConfigError(self.format_findings(collect_findings(found)))
        config = self.build_config(found)
        return config, self.format_findings(found.warnings + config.rules.warnings)

    def build_config(self, file: CloudConfig) -> ClusterConfig:
        """What holds for every Node with such a file. Raises InvalidConfigError."""
        try:
            rules = compile_rules(file)
        except RulesError as error:
            raise InvalidConfigError(self.format_findings(error.findings)) from None
        cluster_name = self._fallback_cluster_name if file.cluster_name is None else file.cluster_name
        return ClusterConfig(
            cluster_name=cluster_name,
            prefer_ipv6=bool(file.prefer_ipv6),
            rules=rules,
            ownership=file.ownership.for_controller(CLOUD_NODE),
        )

    def format_findings(self, findings: tuple[Finding, ...]) -> tuple[str, ...]:
        """What was found in the file, one sentence each."""
        return tuple(
            f"--{CLOUD_CONFIG.name}: {finding.format(str(self.cloud_config))}" for finding in findings
        )


def _find_cluster_name_problems(name: str) -> tuple[str, ...]:
    if not name or is_label_value(name):
        return ()
    said = (
        f"--cluster-name: {name!r} cannot be a label's value: up to 63 letters, digits, '-', '_' and '.', "
        "with a letter or digit at both ends"
    )
    return (said,)
