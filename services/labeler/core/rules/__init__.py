"""The operator's rules: compiled when the file is loaded, applied to the facts of each machine."""

from services.labeler.core.rules.application import apply_rules
from services.labeler.core.rules.compilation import (
    NO_RULES,
    Rules,
    RulesError,
    collect_findings,
    compile_rules,
    select_provider_id_rules,
)
from services.labeler.core.rules.effects import (
    EffectKind,
    EntryResult,
    RetainedKind,
    RuleEffects,
    RuleResult,
    SkippedEntry,
)

__all__ = [
    "NO_RULES",
    "EffectKind",
    "EntryResult",
    "RetainedKind",
    "RuleEffects",
    "RuleResult",
    "Rules",
    "RulesError",
    "SkippedEntry",
    "apply_rules",
    "collect_findings",
    "compile_rules",
    "select_provider_id_rules",
]
