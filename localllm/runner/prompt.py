"""From a request to the tokens of its prompt; it knows nothing of logits, sequences or other requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from localllm.chat import Reader
from localllm.chat.conversation import Message
from localllm.errors import ContextLengthError, RequestError, TemplateError
from localllm.messages import GenerateRequest
from localllm.runner.checks import check_choice, check_ids, check_variables, shown_tools
from localllm.runner.constraints import Frame
from localllm.runner.dialect import dialect_of
from localllm.runner.fitting import (
    GAP,
    Cut,
    cuts_of,
    longest_of,
    n_kept,
    room_for_answer,
    shortened_length,
)
from localllm.runner.templates import Template, Templates
from localllm.tokenizer import Tokenizer

BROKEN = "\ufffd"


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
    """Renders, tokenises and fits prompts for one model and a context of `n_ctx` tokens, of the `n_ctx_train` that it
    was trained for (0: nobody knows)."""

    def __init__(self, name: str, tokenizer: Tokenizer, templates: Templates, n_ctx: int, n_ctx_train: int = 0) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._templates = templates
        self._n_ctx = n_ctx
        self._is_longest = 0 < n_ctx_train <= n_ctx
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
            return self._insertion(request)
        if request.tokens is not None:
            text = self._tokenizer.decode(request.tokens, special=True)
            return self._cut(request, Prompt(text, list(request.tokens)))
        if request.raw:
            return self._cut(request, self._plain(request.prompt))
        if request.kind == "chat":
            return self._conversation(request, request.messages)
        return self._generate(request)

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
        # Without a template, a model continues its prompt.
        is_base = self._templates.is_missing and request.template is None and len(messages) == 1

        def prompt_of(request: GenerateRequest) -> Prompt:
            return self._plain(request.prompt, request.context) if is_base else self._rendered(request, messages)

        request, n_forgotten = self._with_less_history(request, prompt_of)
        prompt = self._cut(request, prompt_of(request)) if is_base else self._conversation(request, messages)
        return replace(prompt, n_dropped_tokens=prompt.n_dropped_tokens + n_forgotten)

    def _with_less_history(
        self, request: GenerateRequest, prompt_of: Callable[[GenerateRequest], Prompt]
    ) -> tuple[GenerateRequest, int]:
        """The request without the oldest tokens of its `context` after the first `num_keep`, and how many went."""
        if not request.context or request.truncate is False:
            return request, 0
        n_all, context = len(prompt_of(request).tokens), request.context
        n_front = n_kept(request.options.get("num_keep", 0), context, len(context), self._tokenizer.bos_id, self._n_ctx)
        n_wanted = n_all - shortened_length(n_all, self._n_ctx, self._n_room(request))
        n_dropped = max(0, min(n_wanted, len(context) - n_front))
        return replace(request, context=[*context[:n_front], *context[n_front + n_dropped :]]), n_dropped

    def _plain(self, text: str, context: list[int] | None = None) -> Prompt:
        return Prompt(text, [*(context or []), *self._encode(text, is_start=not context)])

    def _conversation(self, request: GenerateRequest, messages: list[Message]) -> Prompt:
        """Render, without the oldest turns where the rest leaves no room for an answer."""
        whole = self._rendered(request, messages)
        n_all = len(whole.tokens)
        n_room = self._n_room(request)
        if n_all <= self._n_ctx - n_room or (n_all < self._n_ctx and request.truncate is False):
            return whole
        shorter = None
        if request.truncate is not False:
            shorter = self._shortened(request, messages, shortened_length(n_all, self._n_ctx, n_room))
        if shorter is None and n_all < self._n_ctx:
            return whole
        shorter = shorter or self._with_a_cut_text(request, messages)
        n_dropped = len(messages) - shorter.n_messages
        return replace(shorter, n_dropped_messages=n_dropped, n_dropped_tokens=n_all - len(shorter.tokens))

    def _n_room(self, request: GenerateRequest) -> int:
        return room_for_answer(request.options.get("num_predict", -1), self._n_ctx)

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

    def _shortened(self, request: GenerateRequest, messages: list[Message], n_most: int) -> Prompt | None:
        """The conversation without its oldest parts, of at most `n_most` tokens if whole turns can go for that.

        None where nothing that may be left fits.
        """

        @lru_cache(None)
        def prompt_of(cut: Cut) -> Prompt | None:
            try:
                return self._rendered(request, cut.kept(messages))
            except TemplateError:
                return None  # a template may refuse to begin with an answer

        def fits(cut: Cut, n: int) -> bool:
            prompt = prompt_of(cut)
            return prompt is not None and len(prompt.tokens) <= n

        turns, rounds = cuts_of(messages)
        n_ctx = self._n_ctx
        for cuts, n in ((turns, n_most), (turns[-1:], n_ctx - 1), (rounds, n_most), (rounds, n_ctx - 1)):
            first = bisect_left(cuts, True, key=partial(fits, n=n))
            if (cut := next((cut for cut in cuts[first:] if fits(cut, n)), None)) is not None:
                return prompt_of(cut)
        return None

    def _with_a_cut_text(self, request: GenerateRequest, messages: list[Message]) -> Prompt:
        """The last turn without the middle of its longest text, if the client allows that.

        Raises: ContextLengthError.
        """
        turns, _ = cuts_of(messages)
        last = turns[-1].kept(messages) if turns and request.truncate is not False else messages
        n_all = len(self._rendered(request, last).tokens)
        place = longest_of(last)
        text = "" if place is None else last[place]["content"]
        tokens = self._encode(text, is_start=False)

        def without(n_dropped: int) -> Prompt:
            shorter = {**last[place or 0], "content": self._without_middle(tokens, n_dropped)}
            return self._rendered(request, [shorter if i == place else m for i, m in enumerate(last)])

        return self._fitted(request, n_all, without, len(tokens))

    def _cut(self, request: GenerateRequest, prompt: Prompt) -> Prompt:
        """A prompt of tokens; what is cut of it comes after the first `num_keep`. Raises: ContextLengthError."""
        tokens, n_all = prompt.tokens, len(prompt.tokens)
        if n_all < self._n_ctx:
            return prompt
        n_front = n_kept(request.options.get("num_keep", 0), tokens, n_all, self._tokenizer.bos_id, self._n_ctx)

        def without(n_dropped: int) -> Prompt:
            return replace(prompt, tokens=[*tokens[:n_front], *tokens[n_front + n_dropped :]])

        return self._fitted(request, n_all, without, n_all - n_front)

    def _fitted(self, request: GenerateRequest, n_all: int, without: Callable[[int], Prompt], n_most: int) -> Prompt:
        """The prompt without as few of its tokens, fewer than `n_most`, as leave room for an answer.

        Raises: ContextLengthError where the client does not allow that, or it is not enough.
        """
        limit = self._n_ctx - self._n_room(request)
        prompt, n_dropped = None, n_all - limit
        while request.truncate and n_dropped < n_most:
            prompt = without(n_dropped)
            if len(prompt.tokens) <= limit:
                return replace(prompt, n_dropped_tokens=n_all - len(prompt.tokens))
            # Where it was cut, the text takes other tokens than before.
            n_dropped += len(prompt.tokens) - limit
        what = "more than" if n_all > self._n_ctx else "which leaves no room for an answer in"
        text = f"the prompt has {n_all} tokens, {what} the context of {self._n_ctx}; shorten it"
        text += ", the model was trained for no longer context" if self._is_longest else " or raise num_ctx"
        hint = (
            None if request.truncate else '`"truncate": true` (`localllm run --truncate`) leaves out what is too much'
        )
        raise ContextLengthError(text, n_all, self._n_ctx, hint=hint)

    def _without_middle(self, tokens: list[int], n_dropped: int) -> str:
        """The text of the first and the last of the tokens; a character that was cut in two is left out."""
        n_before = (len(tokens) - n_dropped) // 2
        before = self._tokenizer.decode(tokens[:n_before], special=True)
        after = self._tokenizer.decode(tokens[n_before + n_dropped :], special=True)
        return before.rstrip(BROKEN) + GAP + after.lstrip(BROKEN)

    def _template(self, request: GenerateRequest) -> Template:
        tools = shown_tools(request)
        template = self._templates.choose(request.template, has_tools=bool(tools))
        if tools and not template.supports_tools:
            raise RequestError(f"{self._name} does not support tools")
        if request.think and not template.supports_thinking:
            raise RequestError(f'"{self._name}" does not support thinking')
        return template

    def _insertion(self, request: GenerateRequest) -> Prompt:
        """Fill-in-the-middle; what is cut lies furthest from the gap. Raises: ContextLengthError."""
        prompt = Prompt("", self._insert_tokens(request, request.prompt, request.suffix))
        if len(prompt.tokens) < self._n_ctx:
            return prompt
        before = self._encode(request.prompt, is_start=False)
        after = self._encode(request.suffix, is_start=False)

        def without(n_dropped: int) -> Prompt:
            n_left = len(before) + len(after) - n_dropped
            n_after = min(len(after), max(n_left // 2, n_left - len(before)))
            texts = (before[len(before) - (n_left - n_after) :], after[:n_after])
            return Prompt("", self._insert_tokens(request, *(self._tokenizer.decode(t, special=True) for t in texts)))

        return self._fitted(request, len(prompt.tokens), without, len(before) + len(after))

    def _insert_tokens(self, request: GenerateRequest, prompt: str, suffix: str) -> list[int]:
        """By the Go template if it knows `.Suffix`, else by the vocabulary's own tokens."""
        template = self._templates.for_insert(request.template)
        if template is not None:
            return self._encode(template.render_insert(prompt, suffix))
        special = self._tokenizer.special
        if special.fim_pre is None or special.fim_suf is None or special.fim_mid is None:
            raise RequestError(f"{self._name} does not support insert")
        before = self._encode(prompt, is_start=False)
        after = self._encode(suffix, is_start=False)
        start = [self._tokenizer.bos_id] if self._tokenizer.add_bos and self._tokenizer.bos_id is not None else []
        return [*start, special.fim_pre, *before, special.fim_suf, *after, special.fim_mid]

    def _encode(self, text: str, is_start: bool = True) -> list[int]:
        """Token ids; at the start with BOS where the vocabulary wants it, but never twice, and without EOS."""
        has_bos = bool(self._bos) and text.startswith(self._bos)
        tokens = list(self._tokenizer.encode(text, add_special=is_start and not has_bos, parse_special=True))
        if self._tokenizer.add_eos and is_start and not has_bos and tokens[-1:] == [self._tokenizer.eos_id]:
            tokens.pop()
        return tokens
