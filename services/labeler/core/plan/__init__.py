"""The plan for one Node: the pure difference between the Node and its desired state."""

from services.labeler.core.plan.node_ownership import (
    is_excluded,
    is_managed,
    may_be_excluded,
    why_excluded,
    why_not_managed,
    why_not_managed_by_rules,
)
from services.labeler.core.plan.notices import Notice
from services.labeler.core.plan.plan import IN_SYNC_REASON, ClusterConfig, Plan, PlanOutcome, merge_plans
from services.labeler.core.plan.plan_node import plan_node, plan_unreachable_node

__all__ = [
    "IN_SYNC_REASON",
    "ClusterConfig",
    "Notice",
    "Plan",
    "PlanOutcome",
    "is_excluded",
    "is_managed",
    "may_be_excluded",
    "merge_plans",
    "plan_node",
    "plan_unreachable_node",
    "why_excluded",
    "why_not_managed",
    "why_not_managed_by_rules",
]
