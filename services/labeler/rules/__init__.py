"""The operator's rules: compiled when the file is read, applied to what each machine says."""

from services.labeler.rules.applying import apply_rules
from services.labeler.rules.compiling import NO_RULES, Rules, RulesError, all_mistakes, compile_rules
from services.labeler.rules.effects import EffectKind, EntryTold, RetainedKind, RuleEffects, RuleTold, Skipped

__all__ = [
    "NO_RULES",
    "EffectKind",
    "EntryTold",
    "RetainedKind",
    "RuleEffects",
    "RuleTold",
    "Rules",
    "RulesError",
    "Skipped",
    "all_mistakes",
    "apply_rules",
    "compile_rules",
]
