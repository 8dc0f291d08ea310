"""Make a tiny model for tests of tensor parallelism; runs in the engine's interpreter.

    python tiny_model.py <directory with a tokenizer> <output directory>

SmolLM2 has nine attention heads, which two workers cannot share. This one has eight, random weights from
a fixed seed, and the tokenizer of the model that it is given. The weights are large enough for its output
to depend on the whole prompt."""

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM


def main(source: Path, target: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source)
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=8192,
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
