"""Make a model of one layer of Llama-3.1-8B's shape; runs in the engine's interpreter.

    python slice_model.py <directory with a tokenizer> <output directory>

Random weights, and the tokenizer of the model that it is given. A small model makes much more KV for what it
computes than those that people serve: SmolLM2-135M 11.6 times as much as Llama-3.1-8B. Each layer of a model
makes its part of the KV and of the computation, so one layer of the large one has its proportion (but for the
embedding, which is not computed for a prompt's tokens)."""

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM


def main(source: Path, target: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source)
    torch.manual_seed(7)
    config = LlamaConfig(  # as meta-llama/Llama-3.1-8B's config.json has them, but for layers and vocabulary
        vocab_size=len(tokenizer),
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=1,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
