"""In: model sizes.

Out: step time, tokens per second, share of peak FLOP/s, memory and compile time, also compared with PyTorch.
"""
