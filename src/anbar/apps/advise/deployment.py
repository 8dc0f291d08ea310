"""The deployment that is asked about: a file of YAML, options of the command line, or both."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from anbar.apps.advise.model import read_model
from anbar.apps.calibrate.files import read_cost_file
from anbar.config.fields import Bytes, ConfigModel, Int, Seconds
from anbar.config.problems import Problem, dotted, from_pydantic
from anbar.config.source import Document, read_document
from anbar.core.cost import PrefillCost
from anbar.core.errors import ConfigError
from anbar.plan.catalogue import gpu_key
from anbar.plan.deployment import Deployment, Impossible
from anbar.plan.media import medium_named
from anbar.plan.stack import Stack, StoreTier

Text = Annotated[str, StringConstraints(min_length=1)]


class StoreSpec(ConfigModel):
    """A store that engines could share."""

    medium: Text
    """Where it is: one of `--from` of the calculators."""

    capacity: Bytes | None = None
    """Of all of it. null: without bounds."""

    round_trip_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """To it, on top of the medium's own latency."""


class DeploymentSpec(ConfigModel):
    """What the verdict is about. Sizes are of one engine."""

    model: Text | None = None
    """A name in the catalogue, a directory with config.json, or such a file."""

    gpu: Text | None = None
    """Of each engine."""

    tensor_parallel: Annotated[Int, Field(ge=1, le=64)] = 1
    """GPUs of one engine."""

    engines: Annotated[Int, Field(ge=1, le=10_000)] = 1
    """That serve this load."""

    dtype: Text = "bfloat16"
    """Of the weights."""

    kv_dtype: Text = "bfloat16"
    """Of KV."""

    pool_tokens: Annotated[Int, Field(ge=1)] | None = None
    """Tokens that fit, as vLLM logs at its start. null: estimated."""

    ram: Bytes | None = None
    """Host RAM that can be given to each engine."""

    host_link: Text | None = None
    """How host RAM is reached. null: by the GPU's PCIe; host-vllm-0.11 for old vLLM."""

    store: StoreSpec | None = None
    """null: there is none to ask about."""

    chunk_tokens: Annotated[Int, Field(ge=1, le=16_384)] = 256
    """Stored together."""

    affinity: bool = True
    """Whether requests go to where their prefix is."""

    concurrency: Annotated[float, Field(gt=0)] | None = None
    """Requests at a time. null: as the log says."""

    slo_ttft_s: Seconds | None = None
    """Objective for the time to first token."""

    speculative: bool = False
    """Whether engines decode speculatively."""

    lmcache: bool = False
    """Whether an LMCache server runs already."""

    cost: Text | None = None
    """What `anbar calibrate` measured."""


OPTIONS = {
    "tensor_parallel": "--tp",
    "kv_dtype": "--kv-dtype",
    "pool_tokens": "--pool-tokens",
    "slo_ttft_s": "--slo-ttft-s",
    "store": "--store-bytes",
}
"""Of keys whose option has another name."""


def read_stack(path: Path | None, said: Mapping[str, Any]) -> tuple[DeploymentSpec, Stack]:
    """A deployment as a file and options say it, and as what a verdict is about.

    Raises ConfigError as `read_deployment` and `stack_of` do; of what is impossible it names line or option.
    """
    spec = read_deployment(path, said)
    try:
        return spec, stack_of(spec)
    except Impossible as error:
        problem = Problem((error.field,), error.reason)
        raise ConfigError(_located(path, _document(path), problem, said)) from error


def read_deployment(path: Path | None, said: Mapping[str, Any]) -> DeploymentSpec:
    """Of a file, in which `said` on the command line comes first.

    Raises ConfigError, which names the line or the option, and what is allowed.
    """
    document = _document(path)
    data = {**document.data, **{key: value for key, value in said.items() if value is not None}}
    problems = list(document.problems)
    spec = None
    try:
        spec = DeploymentSpec.model_validate(data)
    except ValidationError as error:
        problems += from_pydantic(error.errors(include_url=False), DeploymentSpec)
    if problems or spec is None:
        raise ConfigError("\n  ".join(_located(path, document, problem, said) for problem in problems))
    return spec


def _document(path: Path | None) -> Document:
    if path is None:
        return Document({}, {}, ())
    try:
        return read_document(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8 (byte {error.start})") from error


def _located(path: Path | None, document: Document, problem: Problem, said: Mapping[str, Any]) -> str:
    key = dotted(problem.path)
    text = f"{key}: {problem.message}" if key else problem.message
    first = str(problem.path[0]) if problem.path else ""
    if first and (path is None or said.get(first) is not None):
        option = "--store-medium" if problem.path[1:] == ("medium",) else OPTIONS.get(first, f"--{first}")
        return f"command line {option}: {problem.message}"
    lines = [document.lines.get(problem.path[:depth]) for depth in range(len(problem.path), -1, -1)]
    line = problem.line or next((line for line in lines if line is not None), 1)
    return f"{path}:{line}: {text}"


REQUIRED = {"model": "--model", "gpu": "--gpu"}
WANTED = {"ram": "--ram (host RAM that each engine can be given)"}


def missing_of(spec: DeploymentSpec) -> tuple[str, ...]:
    """What nobody said, and a verdict would be surer with."""
    asked = [text for key, text in WANTED.items() if getattr(spec, key) is None]
    if spec.store is None and spec.engines > 1:
        asked.append("--store-medium (is there a store that engines could share?)")
    elif spec.store is not None and spec.store.capacity is None:
        asked.append("--store-bytes (how much the store holds)")
    if spec.pool_tokens is None:
        asked.append("--pool-tokens (vLLM logs at its start how many fit)")
    return tuple(asked)


def stack_of(spec: DeploymentSpec) -> Stack:
    """Raises ConfigError: something is not known by that name, or what must be said was not; Impossible."""
    absent = [option for key, option in REQUIRED.items() if getattr(spec, key) is None]
    if spec.model is None or spec.gpu is None:
        raise ConfigError(
            f"a verdict needs {' and '.join(absent)} (or the same in --deployment FILE); what comes "
            "again can be asked without: anbar advise reuse"
        )
    name, config = read_model(spec.model)
    measured = None
    if spec.cost is not None:
        cost = read_cost_file(Path(spec.cost)).cost
        measured = PrefillCost(cost.tokens.s_per_token, cost.prefill_s_per_token2)
    engine = Deployment(
        name, config, gpu_key(spec.gpu), spec.tensor_parallel, spec.dtype, spec.kv_dtype, measured
    )
    store = spec.store
    stack = Stack(
        engine=engine,
        num_engines=spec.engines,
        pool_tokens=spec.pool_tokens,
        host_bytes=spec.ram,
        host=None if spec.host_link is None else medium_named(spec.host_link),
        store=None
        if store is None
        else StoreTier(store.medium, medium_named(store.medium), store.capacity, store.round_trip_s),
        chunk_tokens=spec.chunk_tokens,
        has_affinity=spec.affinity,
        concurrency=spec.concurrency,
        slo_ttft_s=spec.slo_ttft_s,
        uses_speculation=spec.speculative,
        runs_lmcache=spec.lmcache,
    )
    stack.check()
    return stack
