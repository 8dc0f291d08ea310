"""Turns a GGUF file into a model directory that vLLM serves.

A script, never imported: the engine interpreter, which has torch and transformers, runs it as
`python unpack.py SOURCE.gguf TARGET_DIR`. transformers reads GGUF and dequantizes it, but the returned model
still says that it is quantized and refuses to be saved. So a fresh model is built from the cleaned config and
given the same weights, in float32, in which the 4-bit values are exact.

Exit status 90: the interpreter lacks a package, which standard error names.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

try:
    import torch

    import_module("gguf")  # transformers reads the file with it
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
except ModuleNotFoundError as error:
    sys.stderr.write(f"{error.name}\n")
    sys.exit(90)

_SAMPLE = [{"role": "user", "content": "What is 2+2? به فارسی بگو। हिन्दी में भी।"}]


def main(source: Path, target: Path) -> None:
    """Write the model directory `target` from `source` and read it back; raises on any difference."""
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    _say("reading the weights")
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    config = loaded.config
    del config.quantization_config
    config._name_or_path = ""
    with torch.device("meta"):
        fresh = LlamaForCausalLM(config)
    fresh.load_state_dict(loaded.state_dict(), assign=True)
    fresh.tie_weights()
    fresh.generation_config = loaded.generation_config
    _say("writing the model directory")
    fresh.save_pretrained(target)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(target)
    _say("reading it back")
    _check(target, fresh.state_dict(), tokenizer)


def _check(target: Path, weights: dict[str, torch.Tensor], tokenizer: AutoTokenizer) -> None:
    config = json.loads((target / "config.json").read_text())
    if "quantization_config" in config:
        raise SystemExit("the written config still says that the model is quantized")
    names: set[str] = set()
    for file in sorted(target.glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 (a file, not a dict)
                names.add(name)
                if not torch.equal(stored.get_tensor(name), weights[name]):
                    raise SystemExit(f"{name} was not written as it was read")
    tied = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
    missing = weights.keys() - names - tied
    if missing:
        raise SystemExit(f"weights were not written: {sorted(missing)[:3]}")
    again = AutoTokenizer.from_pretrained(target)
    before, after = (
        t.apply_chat_template(_SAMPLE, add_generation_prompt=True)["input_ids"] for t in (tokenizer, again)
    )
    if before != after or len(before) < 10:
        raise SystemExit("the written tokenizer gives other tokens than the one that was read")


def _say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
