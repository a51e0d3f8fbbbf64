"""In: what the user typed, and the environment of the process.

Out: parsed flags, a console, exit codes; signals and closed terminals handled alike in every command.
"""
