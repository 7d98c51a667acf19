"""
Use the meter with the Hugging Face Trainer: a small encoder, two classification tasks and a regression task.

$ pip install 'tagalong[transformers]'
$ python examples/with_transformers.py

The weights are random, so nothing is downloaded. `AffinityTrainer` is the Trainer with a meter; `AffinityMixin` adds a
meter to your own Trainer.
"""

import argparse
import tempfile

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel, TrainingArguments

from tagalong.integrations.transformers import AffinityTrainer

parser = argparse.ArgumentParser(description="The Hugging Face Trainer with a meter.")
parser.add_argument("--steps", type=int, default=100)
args = parser.parse_args()
torch.manual_seed(0)

# -----------------------------------------------------------------------------
# data: sentences of made-up words; the tasks: is it about animals, does it mention a cat (word 3), how long is it
words = torch.randint(1, 40, (512, 12))
lengths = torch.randint(4, 13, (512,))
words[torch.arange(12) >= lengths[:, None]] = 0
labels = {
    "animals": ((words > 0) & (words < 8)).any(1).float(),
    "cat": (words == 3).any(1).float(),
    "length": (lengths - 8) / 4.0,
}
rows = [
    {"input_ids": words[k], "attention_mask": (words[k] > 0).long(), **{t: v[k] for t, v in labels.items()}}
    for k in range(512)
]


# -----------------------------------------------------------------------------
# model: returns the loss of each task, and their sum as `loss`, which the Trainer uses
class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        self.encoder = BertModel(BertConfig(vocab_size=40, max_position_embeddings=16, **size))
        self.heads = nn.ModuleDict({task: nn.Linear(32, 1) for task in labels})

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **truth: Tensor) -> dict[str, Tensor]:
        pooled = self.encoder(input_ids, attention_mask=attention_mask).pooler_output
        out = {task: head(pooled).squeeze(1) for task, head in self.heads.items()}
        losses = {t: F.binary_cross_entropy_with_logits(out[t], truth[t]) for t in ("animals", "cat")}
        losses["length"] = F.mse_loss(out["length"], truth["length"])
        return {"loss": sum(losses.values()), **losses}


def task_losses(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    outputs = model(**inputs)
    return {task: outputs[task] for task in labels}


trainer = AffinityTrainer(
    model=Model(), train_dataset=rows, task_losses=task_losses, shared="encoder", meter_options={"every": 5},
    log_affinity=False,
    args=TrainingArguments(
        tempfile.mkdtemp(), max_steps=args.steps, per_device_train_batch_size=16, learning_rate=1e-3, report_to=[],
        use_cpu=True, save_strategy="no", disable_tqdm=True, label_names=list(labels), remove_unused_columns=False,
    ),
)  # fmt: skip
trainer.train()
print(trainer.meter.affinity())
