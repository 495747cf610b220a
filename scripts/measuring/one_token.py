"""A process that loads a model as a runner does and evaluates one token: `one_token.py MODEL DIGEST N_THREADS`.

Prints one line of JSON: seconds of loading and of the token, and resident memory before and afterwards.
"""

from __future__ import annotations

import json
import sys
import time

import psutil

from localllm.engine import Engine, Entry
from localllm.gguf import open_gguf

N_CTX = 4096


def main() -> None:
    """Load, run one token, print."""
    model, digest, n_threads = sys.argv[1:]
    before, start = psutil.Process().memory_info().rss, time.perf_counter()
    with open_gguf(model) as gguf:
        engine = Engine.load(gguf, n_ctx=N_CTX, n_slots=1, n_threads=int(n_threads), model_digest=digest)
        loaded = time.perf_counter()
        engine.step([Entry(engine.open_sequence(), [0])])
        end = time.perf_counter()
        resident = psutil.Process().memory_info().rss
        times = {"load_s": loaded - start, "token_s": end - loaded}
        print(json.dumps({**times, "before_bytes": before, "resident_bytes": resident}))
        engine.close()


if __name__ == "__main__":
    main()
