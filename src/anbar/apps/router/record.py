"""What is noted of a request while it runs; becomes one `RequestFinished`."""

from anbar.core.outcome import Outcome, RequestFacts, RequestFinished


class Record(RequestFacts, kw_only=True):
    """The facts of a request that runs, from `started_s` on the router's clock."""

    started_s: float

    def ended(self, outcome: Outcome, status: int) -> None:
        self.outcome = outcome
        self.status = status

    def finished(self, now_s: float) -> RequestFinished:
        facts = {name: getattr(self, name) for name in RequestFacts.__struct_fields__}
        return RequestFinished(**facts, e2e_s=now_s - self.started_s)
