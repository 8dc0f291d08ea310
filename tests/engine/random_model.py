"""Make a model with random weights from a fixed seed; runs in the engine's interpreter.

    python random_model.py <directory with a tokenizer> <output directory> [tiny | slice]

It has the tokenizer of the model that it is given.

*tiny*: for tests of tensor parallelism. SmolLM2 has nine attention heads, which two workers cannot share;
this one has eight. Its weights are large enough for its output to depend on the whole prompt.

*slice*: one layer of Llama-3.1-8B, for benchmarks. A small model makes much more KV for what it computes than
those that people serve: SmolLM2-135M 11.6 times as much as Llama-3.1-8B. Each layer of a model makes its part
of the KV and of the computation, so one layer of the large one has its proportion (but for the embedding,
which is not computed for a prompt's tokens)."""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "initializer_range": 0.08,
    },
    "slice": {  # as meta-llama/Llama-3.1-8B's config.json has them, but for its 32 layers
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 1,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}


def main(source: Path, target: Path, shape: str = "tiny") -> None:
    tokenizer = AutoTokenizer.from_pretrained(source)
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **SHAPES[shape],
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
