"""Decides by the last messages about a Node whether its machine is lost."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from libs.common.contract.events import InstanceGone, InstanceReport, InstanceShutDown
from libs.common.contract.instances import InstanceRecord


class MachineLoss(msgspec.Struct, frozen=True, kw_only=True):
    """The cloud has no such instance, the instance is off, or the machine does not answer metadata."""

    kind: Literal["gone", "off", "silent"]
    account: str = ""  # of the cloud, for "gone" and "off"


def select_own_reports(
    reports: Iterable[InstanceReport], node_uid: str, provider_id: str
) -> tuple[InstanceReport, ...]:
    """Return the reports about this Node object with this providerID."""
    return tuple(each for each in reports if (each.node_uid, each.provider_id) == (node_uid, provider_id))


def find_machine_loss(
    own_reports: Iterable[InstanceReport], record: InstanceRecord | None, *, answers: bool | None
) -> MachineLoss | None:
    """Return how the machine is lost; None if no message shows it.

    `answers`: whether metadata's last event about the Node has facts of its machine; None without an event.
    Only the account of the Node's record shows that the instance is gone, as for lifecycle.
    """
    reports = tuple(own_reports)
    off = next((each.account for each in reports if isinstance(each, InstanceShutDown)), None)
    if off is not None:
        return None if answers else MachineLoss(kind="off", account=off)
    gone = {each.account for each in reports if isinstance(each, InstanceGone)}
    if record is not None and record.account in gone:
        return MachineLoss(kind="gone", account=record.account)
    return MachineLoss(kind="silent") if answers is False else None
