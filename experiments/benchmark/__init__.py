"""What a training step costs on this machine: see __main__.py for the commands, experiments/benchmark.md for findings."""
