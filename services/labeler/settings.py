"""What the labeler can be told."""

from typing import Annotated

import msgspec

from libs.common.settings.flags import CLUSTER_NAME, NODES, OBSERVE_ONLY, PREFER_IPV6, RENEW_DEADLINE, Flag
from services.labeler.labels import is_label_value
from services.labeler.plan import Global


class LabelerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the labeler can be told."""

    observe_only: Annotated[bool, OBSERVE_ONLY] = False
    cluster_name: Annotated[str, CLUSTER_NAME] = ""
    prefer_ipv6: Annotated[bool, PREFER_IPV6] = False
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
        if self.cluster_name and not is_label_value(self.cluster_name):
            said = (
                f"the cluster name {self.cluster_name!r} cannot be a label's value (--cluster-name, or "
                "global.clusterName in the --cloud-config file): up to 63 letters, digits, '-', '_' and '.', "
                "with a letter or digit at both ends"
            )
            return (said,)
        return ()

    @property
    def config(self) -> Global:
        """What planning needs of it."""
        return Global(cluster_name=self.cluster_name, prefer_ipv6=self.prefer_ipv6)
