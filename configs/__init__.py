"""Scale files: each has a function get_config() that returns a Config."""
