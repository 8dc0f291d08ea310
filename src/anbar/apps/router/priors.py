"""What is expected of engines before they have shown anything: from cost files, or from nothing."""

from pathlib import Path

from anbar.apps.calibrate.files import read_cost_file
from anbar.core.cost_prior import host_load, prefill_prior
from anbar.core.errors import ConfigError
from anbar.core.events import Tier
from anbar.core.prefill_learner import PREFILL_PRIOR
from anbar.route import CostGroup, EngineCosts


class Priors:
    """Engines with the same cost file, or all with none, are expected to be alike."""

    def __init__(self) -> None:
        self._groups: dict[Path | None, CostGroup] = {}

    def costs(self, file: Path | None, key: str) -> EngineCosts:
        """The costs of one more engine. `key`: where in the configuration `file` stands.

        Raises ConfigError for a file that cannot be used.
        """
        if file not in self._groups:
            self._groups[file] = CostGroup(PREFILL_PRIOR) if file is None else _measured(file, key)
        return self._groups[file].join()


def _measured(file: Path, key: str) -> CostGroup:
    try:
        content = read_cost_file(file)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    prior = prefill_prior(content)
    if prior.a_s_per_token <= 0:
        points = [list(point) for point in content.cost.tokens.points]
        raise ConfigError(f"{key}: {file}: cost.tokens is {points}; allowed: points whose seconds grow")
    return CostGroup(prior, {Tier.HOST: host_load(content)} if content.cost.load.s_per_byte > 0 else {})
