"""`localllm serve` with the scripted runner whose path is the only argument."""

import functools
import sys

from localllm import env
from localllm.scheduler import Scheduler
from localllm.scheduler.budget import Budget
from localllm.scheduler.memory import MemoryEstimate
from localllm.server import process

process.Scheduler = functools.partial(  # type: ignore[assignment,misc]
    Scheduler,
    command=[sys.executable, sys.argv[1]],
    estimate=lambda want: MemoryEstimate(1000, 1.0, n_ctx_train=4096),
    budget=Budget(lambda: 1 << 40, lambda: 1 << 40, lambda pid: 0),
)
process.serve(tls_cert=env.tls_cert(), tls_key=env.tls_key())
