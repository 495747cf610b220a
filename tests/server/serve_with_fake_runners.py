"""`localllm serve` with the scripted runner whose path is the only argument."""

import functools
import sys

from localllm.scheduler import Scheduler
from localllm.scheduler.memory import MemoryEstimate
from localllm.server import serve as serve_function
from localllm.server.serve import __name__ as module_name

sys.modules[module_name].Scheduler = functools.partial(  # type: ignore[attr-defined]
    Scheduler, command=[sys.executable, sys.argv[1]], estimate=lambda want: MemoryEstimate(1000, 1.0, 0)
)
serve_function()
