"""transformers and peft: a small GPT-2 with LoRA, three data sets as tasks.

Needs: pip install transformers peft
Run:   python benchmarks/compatibility/with_peft.py
"""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from reference import Case, main, train_in_loop
from transformers import GPT2Config, GPT2LMHeadModel

from tagalong import AffinityMeter

TASKS = ("code", "news", "poems")


class System:
    """A frozen GPT-2 with LoRA adapters, and their optimizer."""

    def __init__(self) -> None:
        config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)
        self.model: Any = get_peft_model(
            GPT2LMHeadModel(config), LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True)
        )
        self.model.double()
        for name, parameter in self.model.named_parameters():
            if "lora_B" in name:  # zero at first, which makes the first gradients of A zero
                torch.nn.init.normal_(parameter, std=0.02)
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-2)

    def losses(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {task: self.model(input_ids=rows, labels=rows).loss for task, rows in batch.items()}


def batches() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    limits = {"code": 16, "news": 32, "poems": 64}
    return [{task: torch.randint(limits[task], (8, 16), generator=generator) for task in TASKS} for _ in range(12)]


def train(system: System, before_step: Any, meter: Any) -> None:
    train_in_loop(system, batches(), before_step, meter)


if __name__ == "__main__":
    main(
        [
            Case(
                "transformers + peft, GPT-2 with LoRA",
                System,
                lambda system: system.model,
                lambda system: system.optimizer,
                lambda system: [p for name, p in system.model.named_parameters() if "lora_" in name],
                lambda system, batch: system.losses(batch),
                train,
                lambda system: AffinityMeter("*lora_*", system.optimizer, model=system.model, every=1),
            )
        ]
    )
