"""Trains a model as a run: data, optimizer, training step, metrics, checkpoints and the training loop."""
