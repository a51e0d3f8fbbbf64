"""In: the command line, and the environment of the process.

Out: parsed flags, a console and exit codes; all commands handle errors, signals and closed terminals in the same way.
"""
