"""Which models are resident: queue, loading, keep-alive, unloading; it knows nothing of HTTP, prompts or tokens."""

from localllm.scheduler.background import BackgroundScheduler
from localllm.scheduler.figures import ModelFigures
from localllm.scheduler.lease import Lease
from localllm.scheduler.residents import RunningModel
from localllm.scheduler.scheduler import Scheduler

__all__ = ["BackgroundScheduler", "Lease", "ModelFigures", "RunningModel", "Scheduler"]
