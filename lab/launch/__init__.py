"""In: planned runs.

Out: finished, failed or stopped runs, trained in worker processes on this machine or as a Slurm array job.
"""
