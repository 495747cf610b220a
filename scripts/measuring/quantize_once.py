"""A process that quantises a model as `create` does: `quantize_once.py SOURCE DESTINATION TYPE N_THREADS`."""

from __future__ import annotations

import sys
from pathlib import Path

from localllm.quantize import parse_preset, quantize


def main() -> None:
    """Quantise; prints nothing."""
    source, destination, kind, n_threads = sys.argv[1:]
    quantize([Path(source)], Path(destination), parse_preset(kind), n_threads=int(n_threads))


if __name__ == "__main__":
    main()
