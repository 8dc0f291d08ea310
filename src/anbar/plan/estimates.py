"""First tokens, goodput and preemptions before and after, by formulas: where nothing was simulated.

An engine is taken as one queue. Its mean wait is Kingman's (1961): rho / (1 - rho) x (ca2 + cs2) / 2 x E[S],
with the squared coefficients of variation of the times between arrivals, as the log has them, and of service
times. Service is computing and loading a prompt, longer by the share of time that answers take. Waits longer
than t are taken to be as likely as rho x exp(-t x rho / mean wait), as they are in M/M/1.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from anbar.plan.answer import Figure, in_words
from anbar.plan.facts import Facts
from anbar.plan.options import Option
from anbar.plan.reasons import Choice

_ESTIMATED = (
    "estimated: an engine is one queue (Kingman), waits beyond an objective are as in M/M/1, and a request "
    "without room is preempted once; `--simulate N` simulates instead"
)
_NOT_ESTIMATED = (
    "not estimated: waits for a first token, and good answers a second, of a load whose times are not in the "
    "log; `--simulate N` with --concurrency simulates them"
)
DEFAULT_SLO_S = 2.0
"""Objective for the time to first token where nobody said one: that of `anbar simulate`."""


def notes_of(figures: Sequence[Figure]) -> tuple[str, ...]:
    """What a reader of these estimates should know, and what of them is missing."""
    has_waits = any(figure.name.startswith("good answers") for figure in figures)
    return (_ESTIMATED,) if has_waits else (_ESTIMATED, _NOT_ESTIMATED)


def estimated(facts: Facts, choice: Choice) -> Iterator[Figure]:
    """Without a tier, and with the one that was chosen, or else with host RAM if there is any."""
    named = {"neither": facts.neither}
    if choice is Choice.SHARED:
        named["shared"] = facts.shared
    elif facts.stack.host_tokens:
        named["native"] = facts.native
    for name, option in named.items():
        yield from _of(facts, name, option)


def _of(facts: Facts, name: str, option: Option) -> Iterator[Figure]:
    load = facts.options.load
    if load is not None:
        yield from _queue(facts, name, option, load.requests_per_s)
    need, pool, num = facts.at_once, facts.stack.pool, len(facts.options.prompt)
    share = 1.0 - pool / need if need > pool else 0.0
    back = "computed again" if option is facts.neither else "loaded again"
    yield Figure(
        f"preemptions, {name}, estimated",
        round(num * share),
        "count",
        f"{num:,} requests x max(0, 1 - {pool:,} / {in_words(need, 'tokens')} that run at once), at least; "
        f"each is {back}",
    )


def _queue(facts: Facts, name: str, option: Option, rate: float) -> Iterator[Figure]:
    options = facts.options
    used = options.utilisation(option) or 0.0
    answers = options.decode_s / option.engine_s * used
    service: npt.NDArray[np.float64] = option.first_token_s / max(1e-9, 1.0 - min(answers, 0.99))
    busy = rate * float(service.mean())
    if used >= 1.0 or busy >= 1.0:
        how = f"engines are asked for {in_words(used, 'share')} of what they can do: requests pile up"
        yield Figure(f"mean time to first token, {name}, estimated", float("inf"), "s", how)
        yield Figure(f"good answers a second, {name}, estimated", 0.0, "count", how)
        return
    arrivals, services = _variation(_gaps(facts)), _variation(service)
    wait = busy / (1 - busy) * (arrivals + services) / 2 * float(service.mean())
    mean = float(service.mean())
    yield Figure(
        f"mean time to first token, {name}, estimated",
        mean + wait,
        "s",
        f"{in_words(mean, 's')} + {busy:.3g} / (1 - {busy:.3g}) x ({arrivals:.3g} + {services:.3g}) / 2 x "
        f"{in_words(mean, 's')} of waiting (Kingman); a prompt and its part of answers {in_words(mean, 's')}",
    )
    slo = facts.stack.slo_ttft_s or DEFAULT_SLO_S
    late = np.where(service > slo, 1.0, 0.0)
    if wait > 0.0:
        late = np.where(service > slo, 1.0, busy * np.exp(-np.maximum(slo - service, 0.0) * busy / wait))
    good = 1.0 - float(late.mean())
    all_engines = rate * facts.stack.num_engines
    yield Figure(
        f"good answers a second, {name}, estimated",
        good * all_engines,
        "count",
        f"{all_engines:.3g} requests/s x {in_words(good, 'share')} that begin within {in_words(slo, 's')}",
    )


def _gaps(facts: Facts) -> npt.NDArray[np.float64]:
    return np.diff([asked.at_s for asked in facts.options.workload.requests])


def _variation(values: npt.NDArray[np.float64]) -> float:
    """Squared coefficient of variation."""
    mean = float(values.mean()) if len(values) else 0.0
    return float(values.var()) / mean**2 if mean > 0.0 else 0.0
