"""What turns a model into a run."""
