"""In: the paths of text files, or the name of a synthetic task.

Out: batches of token sequences; the batch of a step does not depend on the number of processes.

documents -> splits -> tokenization (by a tokenizer) -> corpus -> windows, or synthetic_tasks -> loading -> batches
"""
