"""Routing: filter → score → pick, the prefix index, and what is learned from finished requests. All pure."""

from anbar.route.contract import Policy
from anbar.route.index import IndexStats, PrefixIndex
from anbar.route.learn import PrefillGroup, PrefillLearner
from anbar.route.policies import POLICIES, make_policy
from anbar.route.profile import EngineProfile
from anbar.route.residency import ResidencyLimits

__all__ = [
    "POLICIES",
    "EngineProfile",
    "IndexStats",
    "Policy",
    "PrefillGroup",
    "PrefillLearner",
    "PrefixIndex",
    "ResidencyLimits",
    "make_policy",
]
