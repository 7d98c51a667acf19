"""Adapters for other training libraries; each requires its own package, so import the module that you need.

- `tagalong.integrations.lightning`: `AffinityCallback` for Lightning's Trainer.
- `tagalong.integrations.sklearn`: `GroupedMultiTaskRegressor` and `GroupedMultiTaskClassifier` for arrays.
- `tagalong.integrations.transformers`: `AffinityTrainer` and `AffinityMixin` for the Hugging Face Trainer.

Training loops that use accelerate, Fabric or plain PyTorch need no adapter; see the documentation.
"""
