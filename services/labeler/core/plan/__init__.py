"""The plan for one Node: the pure difference between the Node and its desired state."""

from services.labeler.core.plan.node_ownership import (
    check_ownership,
    find_exclusion,
    find_foreign,
    is_excluded,
)
from services.labeler.core.plan.plan import (
    IN_SYNC_REASON,
    ClusterConfig,
    NotOurs,
    Plan,
    PlanOutcome,
    merge_plans,
)
from services.labeler.core.plan.plan_node import plan_node, plan_unreachable_node, plan_unreported_node

__all__ = [
    "IN_SYNC_REASON",
    "ClusterConfig",
    "NotOurs",
    "Plan",
    "PlanOutcome",
    "check_ownership",
    "find_exclusion",
    "find_foreign",
    "is_excluded",
    "merge_plans",
    "plan_node",
    "plan_unreachable_node",
    "plan_unreported_node",
]
