"""From a request to the tokens of its prompt; it knows nothing of logits, sequences or other requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from localllm.chat import Reader
from localllm.chat.conversation import Message
from localllm.errors import ContextLengthError, RequestError, TemplateError
from localllm.messages import GenerateRequest
from localllm.runner.checks import check_choice, check_ids, check_variables, shown_tools
from localllm.runner.constraints import Frame
from localllm.runner.dialect import dialect_of
from localllm.runner.templates import Template, Templates
from localllm.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """`tokens` to evaluate; `text` as rendered from `n_messages`; what was dropped to make them fit; what takes the
    answer apart, the control tokens it must see, texts that end the answer, and how its content is framed."""

    text: str
    tokens: list[int]
    n_dropped_messages: int = 0
    n_dropped_tokens: int = 0
    reader: Reader | None = None
    visible: frozenset[int] = frozenset()
    n_messages: int = 0
    stops: tuple[str, ...] = ()
    frame: Frame = field(default_factory=Frame)


class PromptBuilder:
    """Renders, tokenises and fits prompts for one model and a context of `n_ctx` tokens."""

    def __init__(self, name: str, tokenizer: Tokenizer, templates: Templates, n_ctx: int) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._templates = templates
        self._n_ctx = n_ctx
        bos = tokenizer.bos_id
        self._bos = "" if bos is None else tokenizer.piece(bos, special=True).decode(errors="replace")

    def build(self, request: GenerateRequest) -> Prompt:
        """The prompt of a request.

        Raises:
            RequestError: something the model or this version cannot do.
            TemplateError: the template refuses the conversation.
            ContextLengthError: too long, and not allowed to be cut.
        """
        self._check(request)
        prompt = self._readable(request, self._fitting(request))
        if not prompt.tokens:
            raise RequestError("the prompt is empty")
        return prompt

    def _fitting(self, request: GenerateRequest) -> Prompt:
        if request.suffix:
            return self._cut(request, Prompt("", self._insert_tokens(request)))
        if request.tokens is not None:
            text = self._tokenizer.decode(request.tokens, special=True)
            return self._cut(request, Prompt(text, list(request.tokens)))
        if request.raw:
            return self._cut(request, self._plain(request.prompt))
        if request.kind == "chat":
            return self._chat(request)
        return self._cut(request, self._generate(request))

    def _check(self, request: GenerateRequest) -> None:
        check_choice(request)
        check_variables(request)
        if request.images or any(message.get("images") for message in request.messages):
            raise RequestError(f'"{self._name}" does not support images')
        check_ids("context", request.context, self._tokenizer.n_vocab)
        check_ids("tokens", request.tokens, self._tokenizer.n_vocab)

    def _generate(self, request: GenerateRequest) -> Prompt:
        system = [{"role": "system", "content": request.system}] if request.system else []
        messages = [*system, *request.messages, {"role": "user", "content": request.prompt}]
        is_base = self._templates.is_missing and request.template is None and len(messages) == 1
        if is_base:  # without a template, a model continues its prompt
            return self._plain(request.prompt, request.context)
        return self._rendered(request, messages)

    def _plain(self, text: str, context: list[int] | None = None) -> Prompt:
        return Prompt(text, [*(context or []), *self._encode(text, is_start=not context)])

    def _chat(self, request: GenerateRequest) -> Prompt:
        """Drop the oldest turns until the rest fits; system messages and the last message always stay."""
        whole = self._rendered(request, request.messages)
        n_all = len(whole.tokens)
        if n_all <= self._n_ctx:
            return whole
        shortened = self._shortened(request) if request.truncate else None
        if shortened is None:
            raise self._too_long(n_all)
        n_dropped = len(request.messages) - shortened.n_messages
        n_tokens = n_all - len(shortened.tokens)
        return replace(shortened, n_dropped_messages=n_dropped, n_dropped_tokens=n_tokens)

    def _rendered(self, request: GenerateRequest, messages: list[Message]) -> Prompt:
        template = self._template(request)
        text = dialect_of(template).render(request, messages, shown_tools(request))
        plain = self._plain(text, request.context)
        return replace(plain, n_messages=len(messages), stops=self._templates.stops(template))

    def _readable(self, request: GenerateRequest, prompt: Prompt) -> Prompt:
        """With what its answer is read by; the answer to what was not rendered is text."""
        if not prompt.n_messages:
            return prompt
        tools, dialect = shown_tools(request), dialect_of(self._template(request))
        visible = self._control_tokens(dialect.tags(tools))
        messages = request.messages if request.kind == "chat" else []
        reader = dialect.reader(prompt.text, messages, tools, visible.values())
        frame = dialect.frame(request, prompt.text, messages, tools)
        return replace(prompt, reader=reader, visible=frozenset(visible), frame=frame)

    def _control_tokens(self, texts: Iterable[str]) -> dict[int, str]:
        """The control tokens of which texts consist, which are not shown otherwise, and the text of each."""
        tokenizer = self._tokenizer
        tokens = {token for text in texts for token in tokenizer.encode(text, add_special=False)}
        control = (token for token in tokens if tokenizer.is_control(token))
        return {token: tokenizer.piece(token, special=True).decode(errors="replace") for token in control}

    def _shortened(self, request: GenerateRequest) -> Prompt | None:
        """The conversation from the earliest turn on that fits; None if there is no such turn."""

        @lru_cache(None)
        def begun_at(cut: int) -> Prompt | None:
            kept = [m for i, m in enumerate(request.messages) if i >= cut or m["role"] == "system"]
            try:
                prompt = self._rendered(request, kept)
            except TemplateError:
                return None  # a template may refuse to begin with an answer
            return prompt if len(prompt.tokens) <= self._n_ctx else None

        turns, inner = cut_points(request.messages)
        first = bisect_left(turns, True, key=lambda cut: begun_at(cut) is not None)
        return next((prompt for cut in [*turns[first:], *inner] if (prompt := begun_at(cut))), None)

    def _cut(self, request: GenerateRequest, prompt: Prompt) -> Prompt:
        """Keep the first num_keep tokens and drop the middle so that about half of the context is free, as Ollama."""
        tokens, limit = prompt.tokens, max(1, self._n_ctx - 1)
        n_all = len(tokens)
        if n_all <= limit:
            return prompt
        if not (request.truncate and request.shift):
            raise self._too_long(n_all)
        n_keep = n_kept(request.options.get("num_keep", 0), tokens, n_all, self._tokenizer.bos_id, self._n_ctx)
        n_left = self._n_ctx - (self._n_ctx - n_keep) // 2
        tokens = [*tokens[:n_keep], *tokens[n_all - (n_left - n_keep) :]][:limit]
        return replace(prompt, tokens=tokens, n_dropped_tokens=n_all - len(tokens))

    def _template(self, request: GenerateRequest) -> Template:
        tools = shown_tools(request)
        template = self._templates.choose(request.template, has_tools=bool(tools))
        if tools and not template.supports_tools:
            raise RequestError(f"{self._name} does not support tools")
        if request.think and not template.supports_thinking:
            raise RequestError(f'"{self._name}" does not support thinking')
        return template

    def _insert_tokens(self, request: GenerateRequest) -> list[int]:
        """Fill-in-the-middle: by the Go template if it knows `.Suffix`, else by the vocabulary's own tokens."""
        template = self._templates.for_insert(request.template)
        if template is not None:
            return self._encode(template.render_insert(request.prompt, request.suffix))
        special = self._tokenizer.special
        if special.fim_pre is None or special.fim_suf is None or special.fim_mid is None:
            raise RequestError(f"{self._name} does not support insert")
        before = self._encode(request.prompt, is_start=False)
        after = self._encode(request.suffix, is_start=False)
        start = [self._tokenizer.bos_id] if self._tokenizer.add_bos and self._tokenizer.bos_id is not None else []
        return [*start, special.fim_pre, *before, special.fim_suf, *after, special.fim_mid]

    def _encode(self, text: str, is_start: bool = True) -> list[int]:
        """Token ids; at the start with BOS where the vocabulary wants it, but never twice, and without EOS."""
        has_bos = bool(self._bos) and text.startswith(self._bos)
        tokens = list(self._tokenizer.encode(text, add_special=is_start and not has_bos, parse_special=True))
        if self._tokenizer.add_eos and is_start and not has_bos and tokens[-1:] == [self._tokenizer.eos_id]:
            tokens.pop()
        return tokens

    def _too_long(self, n_prompt: int) -> ContextLengthError:
        text = f"the prompt has {n_prompt} tokens, more than the context of {self._n_ctx}; shorten it or raise num_ctx"
        return ContextLengthError(text, n_prompt, self._n_ctx)


def n_kept(num_keep: int, tokens: list[int], n_prompt: int, bos_id: int | None, n_ctx: int) -> int:
    """Tokens kept at the front when the context is cut: a negative `num_keep` is the whole prompt, BOS is extra,
    and half of the context is the most, so that each cut makes room."""
    wanted = n_prompt if num_keep < 0 else num_keep + (bos_id is not None and tokens[:1] == [bos_id])
    return min(wanted, n_prompt, n_ctx // 2)


def cut_points(messages: list[Message]) -> tuple[list[int], list[int]]:
    """Where a shortened conversation may begin: at each later user message, and then, within the last turn, at
    messages other than tool results, which stay with their call. What comes last always stays."""
    first = next((i for i, m in enumerate(messages) if m["role"] != "system"), 0)
    turns = [i for i, m in enumerate(messages) if m["role"] == "user" and i > first]
    last_turn = turns[-1] if turns else first
    inner = [i for i, m in enumerate(messages) if i > last_turn and m["role"] not in ("system", "tool")]
    if messages[-1]["role"] == "assistant":
        inner = inner[:-1]  # the beginning of an answer needs its question
    return turns, inner
