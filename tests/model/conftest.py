"""Makes the modules in this directory importable from the tests in its subdirectories."""
