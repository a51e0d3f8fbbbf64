"""The training of one run: data, optimizer, training step, metrics, checkpoints and the training loop."""
