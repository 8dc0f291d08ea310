"""What is noted of a request while it runs; becomes one `RequestFinished`."""

from dataclasses import dataclass

from anbar.core.ids import EngineId, RequestId
from anbar.core.outcome import Outcome, RequestFinished


@dataclass(slots=True)
class Record:
    """Mutable counterpart of `RequestFinished`; see there for the fields."""

    request_id: RequestId
    endpoint: str
    started_s: float
    model: str = ""
    outcome: Outcome = Outcome.INTERNAL
    status: int = 0
    engine: EngineId | None = None
    stream: bool = False
    policy: str = ""
    reason: str = ""
    degraded: str = ""
    num_attempts: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    predicted_cached_tokens: int = 0
    reported_cached_tokens: int | None = None
    predicted_ttft_s: float = 0.0
    ttft_s: float | None = None
    tokenize_s: float = 0.0
    num_chunks: int = 0
    mean_gap_s: float = 0.0
    max_gap_s: float = 0.0
    num_body_bytes: int = 0

    def ended(self, outcome: Outcome, status: int) -> None:
        self.outcome = outcome
        self.status = status

    def finished(self, now_s: float) -> RequestFinished:
        return RequestFinished(
            request_id=self.request_id,
            endpoint=self.endpoint,
            model=self.model,
            outcome=self.outcome,
            status=self.status,
            engine=self.engine,
            stream=self.stream,
            policy=self.policy,
            reason=self.reason,
            degraded=self.degraded,
            num_attempts=self.num_attempts,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            predicted_cached_tokens=self.predicted_cached_tokens,
            reported_cached_tokens=self.reported_cached_tokens,
            predicted_ttft_s=self.predicted_ttft_s,
            ttft_s=self.ttft_s,
            e2e_s=now_s - self.started_s,
            tokenize_s=self.tokenize_s,
            num_chunks=self.num_chunks,
            mean_gap_s=self.mean_gap_s,
            max_gap_s=self.max_gap_s,
            num_body_bytes=self.num_body_bytes,
        )
