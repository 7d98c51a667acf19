"""Adapters for other training libraries. Each adapter requires its own package and is imported separately.

- `tagalong.integrations.lightning`: `AffinityCallback` for Lightning's Trainer.
- `tagalong.integrations.sklearn`: `GroupedMultiTaskRegressor` and `GroupedMultiTaskClassifier` for arrays.
- `tagalong.integrations.transformers`: `AffinityTrainer` and `AffinityMixin` for the Hugging Face Trainer.

Training loops that use accelerate, Fabric or plain PyTorch need no adapter (see the documentation).
"""
