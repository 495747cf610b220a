"""Converts and quantises model files in a process of its own, `python -m localllm.maker`; it knows no server.

One job comes in on standard input, a line of JSON; what goes out on standard output are lines of JSON:

    {"job": "convert_model", "directory": …, "destination": …}
    {"job": "convert_adapter", "directory": …, "destination": …, "base": path of the base model's GGUF}
    {"job": "quantize", "sources": [path, …], "destination": …, "preset": "Q4_K_M", "imatrix": path or absent}

    {"completed": bytes, "total": bytes}*, then {"done": true} or {"error": text, "hint": text or null}

The process ends when its standard input does, and has a low priority: who waits for an answer comes first.
"""
