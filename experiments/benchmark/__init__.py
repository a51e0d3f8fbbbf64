"""What a training step costs on this machine: __main__.py has the commands, docs/speed.md what was found."""
