"""What must agree between values."""

import pytest

from anbar.config.checks import check, engine_ids
from anbar.config.managed import managed_flag
from anbar.config.models import AnbarConfig, EngineConfig
from anbar.config.problems import dotted


def problems(**values: object) -> dict[str, str]:
    config = AnbarConfig.model_validate(values)
    return {dotted(problem.path): problem.message for problem in check(config)}


def engine(**values: object) -> dict[str, object]:
    return {"name": "a", **values}


def test_an_exchange_needs_a_secret_and_ports() -> None:
    """Over the network there is a secret, and each worker's port is one, and not the router's own."""
    listen, secret = "router.exchange.listen", "router.exchange.secret_file"

    def found(first: int, **more: object) -> dict[str, str]:
        exchange = {"listen": f"10.0.0.5:{first}", "secret_file": "/s"}
        return problems(router={"port": 8000, "workers": 4, "exchange": exchange, **more})

    assert found(7000) == found(7996) == found(65532) == {}
    assert list(found(7997)) == list(found(8000)) == list(found(65533)) == [listen]
    assert list(problems(router={"peers": ["a:1"]})) == [secret]
    assert list(problems(router={"exchange": {"listen": "a:1"}})) == [secret]


def test_defaults_have_no_problems() -> None:
    """The configuration without a file is right."""
    assert problems() == {}


@pytest.mark.parametrize(
    ("engines", "key", "words"),
    [
        ([engine()], "engines[0]", "needs `launch`"),
        ([engine(launch={}, url="http://x")], "engines[0].url", "cannot stand beside"),
        ([engine(url="http://x", api_key_env="A", api_key_file="b")], "engines[0].api_key_file", "keep one"),
        ([engine(launch={}, events="tcp://x:1")], "engines[0].events", "only for engines with `url`"),
        ([engine(launch={"port": 65535, "count": 2})], "engines[0].launch.port", "ports up to 65536"),
        ([engine(launch={"port": 8000})], "engines[0].launch.port", "which the router has"),
        ([engine(launch={"device": "cpu", "block_size": 48})], "engines[0].launch.block_size", "multiples"),
        ([engine(launch={"count": 2}), {"name": "a-1", "url": "http://x"}], "engines[1].name", "'a-1'"),
        ([engine(url="http://x"), {"name": "b", "url": "http://x/"}], "engines[1].url", "another engine"),
        (
            [engine(launch={"device": "emulated", "count": 2}, url="http://x")],
            "engines[0].launch.count",
            "stands in",
        ),
        (
            [engine(launch={"device": "emulated", "args": ["--count=2"]})],
            "engines[0].launch.args[0]",
            "use launch.count",
        ),
        ([engine(launch={"args": ["--port=1"]})], "engines[0].launch.args[0]", "use launch.port"),
        ([engine(launch={"env": {"PYTHONHASHSEED": "0"}})], "engines[0].launch.env.PYTHONHASHSEED", "agree"),
        (
            [engine(launch={}), {"name": "b", "launch": {"port": 8100}}],
            "engines[1].launch.port",
            "which a-0 has",
        ),
    ],
)
def test_engines(engines: list[dict[str, object]], key: str, words: str) -> None:
    """Each contradiction is found where a user would correct it."""
    found = problems(engines=engines)
    assert words in found[key], found


def test_emulated_engine_in_place_of_an_attached_one() -> None:
    """It has the entry's own name, as the attached one would."""
    config = {"name": "a", "url": "http://x", "launch": {"device": "emulated"}}
    assert problems(engines=[config]) == {}
    assert engine_ids(EngineConfig.model_validate(config)) == ["a"]


def test_host_tier_of_nothing() -> None:
    """A host tier too small for any model; without a cache it does not matter."""
    assert "needs at least 16MiB" in problems(cache={"host_bytes": "1MiB"})["cache.host_bytes"]
    assert problems(cache={"host_bytes": "1MiB", "mode": "none"}) == {}


@pytest.mark.parametrize(
    ("argument", "flag"),
    [
        ("--kv-transfer-config", "--kv-transfer-config"),
        ("--kv_transfer_config", "--kv-transfer-config"),
        ("--kv-transfer-config.kv_role", "--kv-transfer-config"),
        ("--kv-tr", "--kv-transfer-config"),
        ("--port=3", "--port"),
        ("-tp", "-tp"),
        ("--chat-template=x.jinja", "--chat-template"),
        ("--default_chat_template_kwargs", "--default-chat-template-kwargs"),
        ("--tokenizer-mode", "--tokenizer-mode"),
        ("--no-enable-prompt-tokens-details", "--enable-prompt-tokens-details"),
        ("--no-exclude-tools", "--exclude-tools-when-tool-choice-none"),
        ("--no-enable-prefix-caching", None),
        ("--trust-request-chat-template", None),
        ("--max-num-seqs", None),
        ("--model-impl", None),
        ("--kv-cache-dtype", None),
        ("--enforce-eager", None),
        ("8", None),
        ("-O3", None),
    ],
)
def test_managed_flags(argument: str, flag: str | None) -> None:
    """All spellings that vLLM's parser takes, and none of the free ones."""
    assert managed_flag(argument) == flag


def test_engine_ids() -> None:
    """Launched engines are numbered also when there is one; attached ones keep their name."""
    assert engine_ids(EngineConfig.model_validate(engine(launch={"count": 2}))) == ["a-0", "a-1"]
    assert engine_ids(EngineConfig.model_validate(engine(launch={}))) == ["a-0"]
    assert engine_ids(EngineConfig.model_validate(engine(url="http://x"))) == ["a"]


def test_names_of_models_stand_for_something() -> None:
    """A target names engines that there are, launched ones by their ids, and some target is to be drawn. A
    name may stand for a served model whose own traffic is shared out under its own name."""
    models = {
        "alias": "m",
        "m": [{"model": "m"}, {"model": "m-2"}],
        "one": {"model": "m", "engines": ["a-1"]},
        "wrong": [{"model": "m", "engines": ["a-0", "a-2"]}],
        "none": [{"model": "m", "weight": 0}],
    }
    assert problems(engines=[engine(launch={"count": 2})], router={"models": models}) == {
        "router.models.wrong[0].engines[1]": "is 'a-2', which is no engine's id; allowed: a-0, a-1",
        "router.models.none": "has no target with a weight above 0",
    }


def test_self_check_limits_agree() -> None:
    """More requests than the window holds, and agreement above drift, are named with what is allowed."""
    check = {"window": 12, "min_requests": 13, "agree_absent": 0.3}
    assert problems(router={"self_check": check}) == {
        "router.self_check.min_requests": "is 13; allowed: up to window (12)",
        "router.self_check.agree_requests": "is 16; allowed: up to window (12)",
        "router.self_check.agree_absent": "is 0.3; allowed: up to max_absent (0.2)",
    }


P, D = {"name": "p", "url": "http://p", "role": "prefill"}, {"name": "d", "url": "http://d", "role": "decode"}


@pytest.mark.parametrize(
    ("values", "key", "words"),
    [
        ({"engines": [P, D]}, "engines[0].role", "set router.split.via"),
        ({"engines": [D], "router": {"split": {"via": "shared"}}}, "router.split.via", "no engine has"),
        ({"engines": [P], "router": {"split": {"via": "shared"}}}, "engines[0].role", "to answer"),
        (
            {"engines": [P, D], "router": {"split": {"via": "shared"}}, "cache": {"mode": "native"}},
            "router.split.via",
            "allowed: cache.mode shared",
        ),
        (
            {"engines": [P, D], "router": {"split": {"via": "nixl"}}},
            "router.split.via",
            "allowed: cache.mode none",
        ),
        (
            {
                "engines": [
                    {"name": "p", "launch": {"served_name": "x"}, "role": "prefill"},
                    {"name": "d", "launch": {"served_name": "y", "port": 8200}},
                ],
                "router": {"split": {"via": "shared"}},
            },
            "engines[0].role",
            "to answer for 'x'",
        ),
        (
            {
                "engines": [
                    {"name": "p", "launch": {}, "role": "prefill"},
                    {"name": "d", "launch": {"port": 18100}},
                ],
                "router": {"split": {"via": "nixl"}},
                "cache": {"mode": "none"},
            },
            "engines[1].launch.port",
            "which NIXL of p-0 has",
        ),
    ],
)
def test_prefill_and_decode(values: dict[str, object], key: str, words: str) -> None:
    """What a split needs and does not have is named, with what is allowed."""
    found = problems(**values)
    assert words in found[key], found


def test_a_split_that_is_complete_has_no_problems() -> None:
    """Attached engines, of which nobody knows yet what they serve; and launched ones beside them."""
    split = {"split": {"via": "shared"}}
    assert problems(engines=[P, D], router=split) == {}
    launched = {"name": "q", "launch": {"served_name": "x"}, "role": "prefill"}
    assert problems(engines=[launched, D], router=split) == {}
    nixl = {"router": {"split": {"via": "nixl"}}, "cache": {"mode": "none"}}
    assert problems(engines=[P, {"name": "b", "url": "http://b"}], **nixl) == {}


@pytest.mark.parametrize(("first", "second"), [(8100, 18100), (18100, 8100), (60000, 50000)])
def test_nixl_needs_ports_of_its_own(first: int, second: int) -> None:
    """One engine's port is where another one's NIXL listens, whichever of them comes first in the file."""
    engines = [
        {"name": "p", "launch": {"port": first}, "role": "prefill"},
        {"name": "q", "launch": {"port": second}},
    ]
    found = problems(engines=engines, router={"split": {"via": "nixl"}}, cache={"mode": "none"})
    assert "which" in found["engines[1].launch.port"]
