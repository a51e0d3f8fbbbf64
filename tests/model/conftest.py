"""Makes the modules of this folder importable from the tests in its subfolders."""
