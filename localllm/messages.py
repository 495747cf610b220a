"""The messages between the daemon and a runner process; it knows nothing of processes, HTTP or what tokens mean.

On the pipe a message is one frame: a 4-byte little-endian length, then that many bytes of UTF-8 JSON,
an object whose `type` names one of the classes below.

    daemon -> runner    load, generate, embed, rank, cancel, tokenize, detokenize, shutdown   (end of file means exit)
    runner -> daemon    progress*, then ready or failed;
                        per request: prefill+, chunk*, then done or error
                        (rendered, tokens, text, embeddings or scores instead, where the request asked for that)
                        figures, of no request, after a change
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from localllm.records import Record


class Message(Record):
    """A record that travels as a frame of its own; `type` is its name there."""

    type: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """The fields, and `type`."""
        return {"type": self.type, **super().to_json()}


@dataclass(frozen=True)
class ModelSpec(Record):
    """What a runner needs to know of one model. `name` is for messages to people only.

    `digest` is the manifest's, `model_digest` tells the weights (64 hex, of all parts); `model_paths` are the GGUF's
    parts in order (one for an unsplit file). `template` is the model's own Go template, None for the GGUF's
    Jinja one. `system`, `params` and `messages` are the manifest's layers: the server has already put them
    into each GenerateRequest. `adapters` are the model's own LoRA adapters, each {"path", "digest", "scale"}: a GGUF,
    its SHA-256 (hex), and a factor; they are in force unless a request says otherwise.
    """

    name: str
    digest: str
    model_paths: list[str]
    model_digest: str
    template: str | None = None
    system: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    adapters: list[dict[str, Any]] = field(default_factory=list)

    @property
    def model_path(self) -> str:
        """The GGUF, or its first part."""
        return self.model_paths[0]


@dataclass(frozen=True)
class LoadRequest(Message):
    """The first message to a runner. 0 for `num_batch` or `num_thread` leaves the choice to it, for `num_ctx` to the
    scheduler.

    `num_kv` is how many tokens the KV cache holds, for all requests together (0: `num_parallel` whole contexts).
    `draft` is a smaller model of the same vocabulary that guesses what the model will say.
    """

    type = "load"

    model: ModelSpec = field(metadata={"record": ModelSpec})
    num_ctx: int = 0
    num_kv: int = 0
    num_batch: int = 0
    num_thread: int = 0
    kv_cache_type: str = "f16"
    num_parallel: int = 1
    cache_dir: str | None = None
    draft: ModelSpec | None = field(default=None, metadata={"record": ModelSpec})


@dataclass(frozen=True)
class GenerateRequest(Message):
    """One request for text.

    kind "generate": the prompt is `system` (if any), the history in `messages`, then `prompt` with its
    `images` as the last user message; with `suffix`, only prompt and suffix; with `raw`, `prompt` untouched;
    with `context`, those token ids in front. kind "chat": `messages` is everything, `system` is None.
    `template` is a Go template for this request alone, None for the model's own; `template_arguments` are
    further variables for a Jinja one. `think` is None (the model's habit), a bool or a level. `format` is None,
    "json", a JSON schema, or an object of one key that says what the answer must be: "regex", "choice" or "lark".
    `grammar` is GBNF; with `grammar_lazy` it begins at the first of `grammar_triggers` (llama.cpp's). `options` holds
    every option, resolved by `options.resolve`. `images` are base64 texts. `tokens`, where not None, are the prompt
    itself, as with `raw`.

    `tool_choice` is None (the model decides), "none", "required" or {"name": the function to call}. Requests that are
    not `is_interactive` wait for those that are. `progress` asks for news of the prompt's evaluation. `truncate`: False
    forbids to drop the oldest turns of what does not fit, True allows to cut a single text too. `lora` is None for the
    model's own adapters, else those to be applied instead, written as in ModelSpec (none: an empty list).
    """

    type = "generate"

    id: str
    kind: str
    prompt: str = ""
    suffix: str = ""
    system: str | None = None
    template: str | None = None
    raw: bool = False
    context: list[int] | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    tokens: list[int] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    think: bool | str | None = None
    template_arguments: dict[str, Any] = field(default_factory=dict)
    format: Any = None
    grammar: str | None = None
    grammar_lazy: bool = False
    grammar_triggers: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    logprobs: bool = False
    top_logprobs: int = 0
    truncate: bool | None = None
    shift: bool = True
    debug_render_only: bool = False
    is_interactive: bool = True
    progress: bool = False
    lora: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Embed(Message):
    """Asks for the vectors of `inputs`, texts or token ids; answered by Embeddings.

    `truncate` lets an input that is too long lose its end; without it the request fails. `dimensions` (0: all) is how
    many of the first components are kept. Vectors have length 1 where `normalise`. `lora` is as in GenerateRequest.
    """

    type = "embed"

    id: str
    inputs: list[str] | list[list[int]]
    truncate: bool = True
    dimensions: int = 0
    normalise: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    is_interactive: bool = True
    lora: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Rank(Message):
    """Asks how well each of `documents` answers `query`; answered by Scores. `lora` is as in GenerateRequest."""

    type = "rank"

    id: str
    query: str
    documents: list[str]
    truncate: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    lora: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Cancel(Message):
    """Stop request `id` at once; nothing more is expected for it, and anything still sent is dropped."""

    type = "cancel"

    id: str


@dataclass(frozen=True)
class Tokenize(Message):
    """Asks for the token ids of `text`; answered by Tokens."""

    type = "tokenize"

    id: str
    text: str
    add_special: bool = True
    parse_special: bool = True


@dataclass(frozen=True)
class Detokenize(Message):
    """Asks for the text of `tokens`; answered by Text."""

    type = "detokenize"

    id: str
    tokens: list[int]


@dataclass(frozen=True)
class Shutdown(Message):
    """Drop everything and exit with status 0."""

    type = "shutdown"


@dataclass(frozen=True)
class Progress(Message):
    """A step of loading: `completed` of `total`, in whatever the status counts (kernels, bytes, tensors)."""

    type = "progress"

    status: str
    completed: int = 0
    total: int = 0


@dataclass(frozen=True)
class Ready(Message):
    """The model is loaded. `n_ctx` is the context in force, `memory_bytes` what the model takes, all told; `n_threads`
    and `n_batch` are in force too."""

    type = "ready"

    n_ctx: int
    n_ctx_train: int = 0
    memory_bytes: int = 0
    capabilities: list[str] = field(default_factory=list)
    n_threads: int = 0
    n_batch: int = 0


@dataclass(frozen=True)
class Failed(Message):
    """The model could not be loaded; the runner exits. `kind` is the name of a class of localllm.errors."""

    type = "failed"

    error: str
    kind: str = "RunnerError"
    hint: str | None = None


@dataclass(frozen=True)
class Prefill(Message):
    """The prompt of request `id` is being evaluated: `processed` of `total` tokens are, `cached` of which were in the
    KV cache. Sent once when the request has its turn, with `truncated` as in Done, and, where it asked for progress,
    after each step up to the last token of the prompt. `elapsed_ns` begins with the first of these messages."""

    type = "prefill"

    id: str
    total: int
    cached: int
    processed: int
    elapsed_ns: int = 0
    truncated: dict[str, Any] | None = None


@dataclass(frozen=True)
class Chunk(Message):
    """A piece of the answer to request `id`. A logprob is {"token", "logprob", "bytes", "top_logprobs": [...]}, a tool
    call {"id", "function": {"index", "name", "arguments": object}}, always whole."""

    type = "chunk"

    id: str
    text: str = ""
    thinking: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Stats(Record):
    """Counts of tokens and durations of one request. `prompt_eval_count` includes those reused from the KV cache,
    `eval_count` those of thinking, `draft_accepted_count` is how many of `draft_count` guessed tokens came."""

    load_duration_ns: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration_ns: int = 0
    eval_count: int = 0
    eval_duration_ns: int = 0
    prompt_eval_cached_count: int = 0
    thinking_count: int = 0
    draft_count: int = 0
    draft_accepted_count: int = 0


@dataclass(frozen=True)
class Done(Message):
    """The end of request `id`. `context`: ids of prompt and answer; `truncated`: what was dropped, if anything;
    `stop`: the stop string that ended it, if one did; `warnings`: what of a constraint could not be enforced."""

    type = "done"

    id: str
    done_reason: str = "stop"
    stats: Stats = field(default_factory=Stats, metadata={"record": Stats})
    context: list[int] | None = None
    truncated: dict[str, Any] | None = None
    stop: str | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Error(Message):
    """Request `id` failed, alone. `kind` names a class of localllm.errors, `fields` its extra arguments."""

    type = "error"

    id: str
    error: str
    kind: str = "RunnerError"
    hint: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rendered(Message):
    """The prompt of request `id`, which asked for `debug_render_only`: its text, and the ids to be evaluated."""

    type = "rendered"

    id: str
    prompt: str
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Tokens(Message):
    """The answer to Tokenize."""

    type = "tokens"

    id: str
    tokens: list[int]


@dataclass(frozen=True)
class Text(Message):
    """The answer to Detokenize."""

    type = "text"

    id: str
    text: str


@dataclass(frozen=True)
class Embeddings(Message):
    """The answer to Embed: for each input the base64 of its float32 components, little-endian, and its tokens.

    `truncated`: how many `inputs` lost their end, and how many `tokens` that were, if any did.
    """

    type = "embeddings"

    id: str
    vectors: list[str]
    n_tokens: list[int]
    stats: Stats = field(default_factory=Stats, metadata={"record": Stats})
    truncated: dict[str, Any] | None = None


@dataclass(frozen=True)
class Scores(Message):
    """The answer to Rank: a score for each document, the tokens that were read for it; `truncated` as in Embeddings."""

    type = "scores"

    id: str
    scores: list[float]
    n_tokens: list[int]
    stats: Stats = field(default_factory=Stats, metadata={"record": Stats})
    truncated: dict[str, Any] | None = None


@dataclass(frozen=True)
class Counts(Record):
    """How often something happened in a runner, for all its requests together.

    `prompt_tokens` were evaluated as parts of prompts or inputs, `prompt_tokens_cached` found in the KV cache instead,
    of `prompt_cache_lookups` prompts, `prompt_cache_hits` of which found some. `forced_tokens` are those of
    `generated_tokens` that a constraint left no choice of. A draft is what was guessed of an answer's next tokens and
    evaluated with the last one; `draft_tokens_accepted` of `draft_tokens` came. A shift drops the middle of a full
    context. `kv_cache_page_evictions` are pages of known tokens that were given up for others, `preemptions` requests
    that gave their pages back for others and went on later. `step_ns` is what the `steps` for text took.
    `prompt_tokens_restored` are those of `prompt_tokens_cached` that were read from disk, where `kv_disk_page_writes`
    pages were written.
    """

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_cache_lookups: int = 0
    prompt_cache_hits: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    draft_tokens_accepted: int = 0
    constrained_answers: int = 0
    context_shifts: int = 0
    kv_cache_page_evictions: int = 0
    preemptions: int = 0
    steps: int = 0
    step_ns: int = 0
    prompt_tokens_restored: int = 0
    kv_disk_page_writes: int = 0


@dataclass(frozen=True)
class Levels(Record):
    """How much of something there is in a runner now: requests in its steps and before them, pages of the KV cache,
    those that sequences hold, and those that hold tokens for whoever begins alike. `prefill_budget` is how many rows of
    prompts the latest step beside decoding had room for."""

    sequences_running: int = 0
    sequences_waiting: int = 0
    kv_cache_pages: int = 0
    kv_cache_pages_used: int = 0
    kv_cache_pages_idle: int = 0
    prefill_budget: int = 0


@dataclass(frozen=True)
class Figures(Message):
    """What has happened since the last Figures, and how things stand: at most once a second while there is work, and
    at once where it ends. `token_gaps` are counts of a Distribution: times between the tokens of an answer."""

    type = "figures"

    counts: Counts = field(default_factory=Counts, metadata={"record": Counts})
    levels: Levels = field(default_factory=Levels, metadata={"record": Levels})
    token_gaps: list[int] = field(default_factory=list)
    token_gaps_s: float = 0.0


MESSAGES: dict[str, type[Message]] = {
    cls.type: cls
    for cls in (
        *(LoadRequest, GenerateRequest, Embed, Rank, Cancel, Tokenize, Detokenize, Shutdown),
        *(Progress, Ready, Failed, Prefill, Chunk, Done, Error, Rendered, Tokens, Text, Embeddings, Scores, Figures),
    )
}
