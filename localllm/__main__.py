"""`python -m localllm` is the command line."""

from localllm.cli import main

main()
