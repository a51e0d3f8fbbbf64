"""In: model sizes.

Out: step time, tokens per second, share of the peak, memory and compile time, also beside PyTorch.
"""
