"""Routing: filter → score → pick, the prefix index, and what is learned from finished requests. All pure."""

from anbar.route.chains import PromptChains
from anbar.route.contract import Policy, Sight
from anbar.route.costs import CostGroup, EngineCosts
from anbar.route.index import IndexStats, PrefixIndex
from anbar.route.options import PolicyOptions
from anbar.route.placements import Placement, Placements
from anbar.route.policies import POLICIES, make_policy
from anbar.route.profile import EngineProfile
from anbar.route.residency import ResidencyLimits

__all__ = [
    "POLICIES",
    "CostGroup",
    "EngineCosts",
    "EngineProfile",
    "IndexStats",
    "Placement",
    "Placements",
    "Policy",
    "PolicyOptions",
    "PrefixIndex",
    "PromptChains",
    "ResidencyLimits",
    "Sight",
    "make_policy",
]
