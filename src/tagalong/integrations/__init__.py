"""Adapters for other training libraries; each needs its own package, so import the module that you use.

- `tagalong.integrations.lightning`: `AffinityCallback` for Lightning's Trainer.
- `tagalong.integrations.sklearn`: `GroupedMultiTaskRegressor` and `GroupedMultiTaskClassifier` for arrays.
- `tagalong.integrations.transformers`: `AffinityTrainer` and `AffinityMixin` for the Trainer of Hugging Face.

Loops with accelerate, Fabric and plain PyTorch need no adapter; see the documentation.
"""
