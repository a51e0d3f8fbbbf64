"""Scales: one file each, with a function get_config() that returns a Config."""
