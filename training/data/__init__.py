"""In: the paths of text files, or the name of a synthetic task.

Out: batches of token sequences; the batch of a step does not depend on the number of processes.

documents (decompression, text_detection, json_records | kjv) -> tokenization (splits, tokenizer) -> corpus -> windows
-> loading (or synthetic_tasks) -> batches; evaluation_subset and ngrams score the held-out splits
"""
