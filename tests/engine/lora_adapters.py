"""Make two small LoRA adapters; runs in the engine's interpreter.

    python lora_adapters.py <model directory> <output directory>

Random weights from fixed seeds, large enough to change what the model says; in PEFT's format, in the
directories `a` and `b`."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

RANK = 8
STD = 0.06


def main(model: Path, target: Path) -> None:
    config = AutoConfig.from_pretrained(model)
    hidden, head = config.hidden_size, config.head_dim
    sizes = {
        "q_proj": config.num_attention_heads * head,
        "k_proj": config.num_key_value_heads * head,
        "v_proj": config.num_key_value_heads * head,
    }
    for seed, name in enumerate(("a", "b")):
        torch.manual_seed(seed)
        weights = {}
        for layer in range(config.num_hidden_layers):
            for module, width in sizes.items():
                prefix = f"base_model.model.model.layers.{layer}.self_attn.{module}"
                weights[f"{prefix}.lora_A.weight"] = torch.randn(RANK, hidden) * STD
                weights[f"{prefix}.lora_B.weight"] = torch.randn(width, RANK) * STD
        adapter = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": [*sizes]}
        directory = target / name
        directory.mkdir(parents=True)
        save_file(weights, directory / "adapter_model.safetensors")
        (directory / "adapter_config.json").write_text(json.dumps(adapter))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
