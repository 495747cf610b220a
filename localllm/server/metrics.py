"""GET /metrics: what the daemon has done, and how it stands, for Prometheus; labels hold names of models, no texts.

It knows nothing of how that is counted. The table is complete: the README's is made of it. `prometheus_client` is
imported when somebody asks, since most daemons are never asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from localllm.distribution import BOUNDS_S, Distribution
from localllm.scheduler import ModelFigures
from localllm.server.answer_counts import AnswerCounts
from localllm.server.daemon import daemon_of
from localllm.server.describe import described

PREFIX = "localllm_"

if TYPE_CHECKING:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

Family: TypeAlias = "CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily"
Samples = Iterator[tuple[tuple[str, ...], float | Distribution]]


@dataclass(frozen=True)
class Measure:
    """A metric of models: its name without the prefix, its kind ("counter", "gauge" or "histogram"), what it says.

    `samples` are the values of one model, each with those of the `labels` after the model's; none where it has none.
    """

    name: str
    kind: str
    about: str
    samples: Callable[[ModelFigures], Samples]
    labels: tuple[str, ...] = ()


def _count(name: str, about: str) -> Measure:
    """One of the counts of the model's runners."""
    return Measure(f"{name}_total", "counter", about, lambda model: iter([((), model.tally.counts[name])]))


def _tally(name: str, kind: str, about: str, of: Callable[[ModelFigures], float | Distribution]) -> Measure:
    return Measure(name, kind, about, lambda model: iter([((), of(model))]))


def _level(name: str, about: str) -> Measure:
    """One of the levels of the model's runners, while it is in memory."""

    def samples(model: ModelFigures) -> Samples:
        if model.memory is not None:
            yield (), sum(getattr(levels, name) for levels in model.memory.levels)

    return Measure(name, "gauge", about, samples)


def _memory(model: ModelFigures) -> Samples:
    if model.memory is not None:
        yield (), model.memory.memory_bytes


def _unloads(model: ModelFigures) -> Samples:
    return (((why,), n) for why, n in sorted(model.tally.unloads.items()))


MEASURES = (
    _tally("requests_waiting", "gauge", "requests that wait for their turn: the queue", lambda model: model.waiting),
    _tally(
        *("requests_running", "gauge", "requests that have their turn"),
        lambda model: model.memory.running if model.memory else 0,
    ),
    _tally(
        *("requests_refused_total", "counter", "requests refused with 503 for the length of the queue"),
        lambda model: model.tally.refusals,
    ),
    _tally(
        *("request_queue_seconds", "histogram", "from a request to its turn, loading included; none of batches"),
        lambda model: model.tally.queue_s,
    ),
    _tally(
        *("time_to_first_token_seconds", "histogram", "from a request to its answer's first piece; none of batches"),
        lambda model: model.tally.first_token_s,
    ),
    _tally(
        *("time_between_tokens_seconds", "histogram", "between the steps that brought an answer's tokens"),
        lambda model: model.tally.token_gap_s,
    ),
    _level("sequences_running", "requests that take part in the runner's steps"),
    _level("sequences_waiting", "requests in the runner that wait for others there"),
    _count("prompt_tokens", "tokens evaluated in prompts and inputs (prefill), once more after a shift or a pause too"),
    _count("prompt_tokens_cached", "tokens of prompts that were found in the KV cache instead"),
    _count("prompt_tokens_restored", "those of them that were read from disk"),
    _count("prompt_cache_lookups", "prompts whose beginning was looked for in the KV cache"),
    _count("prompt_cache_hits", "prompts of which a beginning was found there"),
    _count("generated_tokens", "tokens of answers (decode)"),
    _count("forced_tokens", "those of them that a constraint left no choice of"),
    _count("drafts", "guesses of an answer's next tokens that were evaluated with its last one"),
    _count("draft_tokens", "tokens that were guessed so"),
    _count("draft_tokens_accepted", "those of them that came"),
    _count("constrained_answers", "answers that a schema, a grammar or the like held to a form"),
    _count("context_shifts", "times that a full context lost its middle"),
    _count("kv_cache_page_evictions", "pages of known tokens that were given up for others"),
    _count("preemptions", "times that a request gave its pages to others, to go on when there was room"),
    _count("steps", "steps of the runner: a token of every answer, and rows of prompts"),
    _tally(
        *("step_seconds_total", "counter", "what these steps took"), lambda model: model.tally.counts["step_ns"] / 1e9
    ),
    _level("prefill_budget", "rows of prompts that the latest step beside answers had time for"),
    _count("kv_disk_page_writes", "pages of known tokens that were written to disk"),
    _level("kv_cache_pages", "pages that the KV cache has, of 32 tokens each"),
    _level("kv_cache_pages_used", "those of them that requests hold"),
    _level("kv_cache_pages_idle", "those of the others that hold known tokens, for requests that begin alike"),
    Measure("model_memory_bytes", "gauge", "what the model takes, while it is in memory", _memory),
    _tally("model_loads_total", "counter", "times it was loaded", lambda model: model.tally.loads),
    _tally("model_load_failures_total", "counter", "times it could not be", lambda model: model.tally.load_failures),
    _tally("model_load_seconds", "histogram", "how long loading took", lambda model: model.tally.load_s),
    Measure(
        *("model_unloads_total", "counter"),
        "times it was unloaded, for a `reason`: `keep_alive` was over, `request`, `room` for another, `reload`",
        *(_unloads, ("reason",)),
    ),
    _tally(
        *("runner_deaths_total", "counter", "processes of the model that ended unexpectedly"),
        lambda model: model.tally.runner_deaths,
    ),
)

HTTP_NAME = "http_requests_total"
HTTP_ABOUT = "answers of the daemon; `status` 499 where the client left before"
HTTP_LABELS = ("endpoint", "status")


@described("figures for Prometheus", media_type="text/plain")
async def metrics(request: Request) -> Response:
    """The endpoint: Prometheus's text format, or OpenMetrics where `Accept` names it."""
    from prometheus_client.exposition import choose_encoder

    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    figures = _Figures(daemon_of(request).scheduler.figures(), request.app.state.answer_counts)
    return Response(encode(figures), headers={"content-type": media_type})


class _Figures:
    """What an encoder asks for metrics."""

    def __init__(self, models: dict[str, ModelFigures], answers: AnswerCounts) -> None:
        self._models = models
        self._answers = answers

    def collect(self) -> Iterable[Metric]:
        for measure in MEASURES:
            family = _family(measure.name, measure.kind, measure.about, ("model", *measure.labels))
            for name, model in self._models.items():
                for labels, value in measure.samples(model):
                    _add(family, (name, *labels), value)
            yield family
        family = _family(HTTP_NAME, "counter", HTTP_ABOUT, HTTP_LABELS)
        for (endpoint, status), n in sorted(self._answers.items()):
            _add(family, (endpoint, str(status)), n)
        yield family


def _family(name: str, kind: str, about: str, labels: tuple[str, ...]) -> Family:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds: dict[str, type[Family]] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return kinds[kind](PREFIX + name, about, labels=labels)


def _add(family: Family, labels: tuple[str, ...], value: float | Distribution) -> None:
    from prometheus_client.metrics_core import HistogramMetricFamily

    if isinstance(value, Distribution):
        assert isinstance(family, HistogramMetricFamily)
        bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(value.counts), strict=True)), value.total_s)
    else:
        assert not isinstance(family, HistogramMetricFamily)
        family.add_metric(labels, value)
