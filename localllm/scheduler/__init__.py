"""Which models are resident: queue, loading, keep-alive, unloading; it knows nothing of HTTP, prompts or tokens."""

from localllm.scheduler.scheduler import Lease, RunningModel, Scheduler

__all__ = ["Lease", "RunningModel", "Scheduler"]
