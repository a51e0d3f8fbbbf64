"""What a training step costs on this machine: __main__.py has the commands, benchmark.md what was found."""
