"""What turns runs into knowledge."""

from experiments import plain_matplotlib

plain_matplotlib.install()
