"""What was learned of an engine's costs: a part of `/admin/engines`, and of the metrics."""

from anbar.core.events import Tier
from anbar.core.outcome import CostGauges
from anbar.route import EngineCosts


def costs_page(costs: EngineCosts) -> dict[str, object]:
    """Coefficients in seconds, and how much stands behind them."""
    prefill, learner = costs.prefill, costs.learner
    return {
        "prefill": {
            "overhead_s": _short(prefill.overhead_s),
            "s_per_token": _short(prefill.a_s_per_token),
            "s_per_token2": _short(prefill.b_s_per_token2),
            "s_per_running_answer": _short(prefill.s_per_answer),
            "requests": learner.num_samples,
            "mean_error": round(learner.error, 3),
        },
        "load": {
            tier.value: {
                "latency_s": _short(load.latency_s),
                "s_per_token": _short(load.s_per_token),
                "requests": costs.num_loads(tier),
            }
            for tier, load in costs.loads.items()
        },
    }


def cost_gauges(costs: EngineCosts) -> CostGauges:
    """The same for metrics."""
    prefill, loads = costs.prefill, costs.loads
    return CostGauges(
        prefill.overhead_s,
        prefill.a_s_per_token,
        prefill.b_s_per_token2,
        costs.learner.error,
        loads[Tier.HOST].s_per_token,
        loads[Tier.SHARED].s_per_token,
    )


def _short(value: float) -> float:
    """Four digits: more would look like knowledge."""
    return float(f"{value:.4g}")
