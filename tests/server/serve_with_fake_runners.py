"""`localllm serve` with the scripted runner whose path is the only argument."""

import functools
import sys

from localllm import env
from localllm.scheduler import Scheduler
from localllm.scheduler.memory import MemoryEstimate
from localllm.server import process

process.Scheduler = functools.partial(  # type: ignore[assignment,misc]
    Scheduler, command=[sys.executable, sys.argv[1]], estimate=lambda want: MemoryEstimate(1000, 1.0, 0)
)
process.serve(tls_cert=env.tls_cert(), tls_key=env.tls_key())
