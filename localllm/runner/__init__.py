"""One model in a process of its own: prompts, tokens, batching, sampling, answers; it knows nothing of HTTP."""
