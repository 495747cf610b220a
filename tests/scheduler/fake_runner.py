"""Speaks the runner's protocol without a model: what it does is scripted by the model's params and the prompt.

Params of the model (all optional), under "fake":
    load_steps, load_delay_s   progress messages before ready, and the pause before each
    load                       "fail" (a failed message), "crash" (exit 3), "hang"
    n_ctx_train                caps the context
    memory_bytes, capabilities reported with ready
    stubborn                   ignores SIGTERM and the shutdown message

The prompt (or the last chat message; as tokens, its bytes) is a script of words; each other word comes back as a piece:
    !sleep:S    pause          !crash    kill -9 itself     !exit      exit status 3
    !error:K    an error of class K                         !hang      never answers again
    !forever    a piece every 10 ms until canceled          !think:W   W as thinking
    !flood:N    N pieces at once                            !garbage   bytes that are no frame
    !options    the options as JSON                         !request   the whole request as JSON
    !pid        the process id                              !call      a tool call
    !load       what was to be loaded, as JSON
    !logprobs   a piece with logprobs                       !length    ends with done_reason "length"
    !figures:N  figures: N prompt tokens, a gap of 2 ms between tokens, N of 8 pages used
    !lost:M,T   M messages and T tokens were dropped     !cached:N  N tokens were in the KV cache
    !stop:W     ends at once, by the stop string W              !text:B     the text whose base64 is B

The vector of an input is its length, its place among the inputs, dimensions and normalise; a document's score is its
length. The input or query `!error:K` is an error, `!hang` is never answered. An input or document `!lost:N` lost N
tokens.
"""

import array
import base64
import json
import os
import signal
import sys
import threading
import time

from localllm.frames import encode_frame, read_frame
from localllm.messages import (
    Cancel,
    Chunk,
    Counts,
    Detokenize,
    Done,
    Embed,
    Embeddings,
    Error,
    Failed,
    Figures,
    GenerateRequest,
    Levels,
    LoadRequest,
    Message,
    Prefill,
    Progress,
    Rank,
    Ready,
    Rendered,
    Scores,
    Shutdown,
    Stats,
    Text,
    Tokenize,
    Tokens,
)

# What goes wrong with such a request does so before its prompt is evaluated.
BEFORE_PREFILL = ("!error", "!crash", "!exit")
TINY = {"token": "b", "logprob": float("-inf"), "bytes": [98]}
lock = threading.Lock()
canceled: set[str] = set()
loaded: list[LoadRequest] = []


def send(message: Message) -> None:
    with lock:
        sys.stdout.buffer.write(encode_frame(message))
        sys.stdout.buffer.flush()


def load(request: LoadRequest) -> None:
    loaded.append(request)
    fake = request.model.params.get("fake", {})
    if fake.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for step in range(fake.get("load_steps", 0)):
        time.sleep(fake.get("load_delay_s", 0.0))
        send(Progress("compiling kernels", step + 1, fake["load_steps"]))
    how = fake.get("load")
    if how == "fail":
        send(Failed('unsupported architecture: "foo"', "UnsupportedModelError", "pick another model"))
        sys.exit(1)
    if how == "crash":
        print("no such luck", file=sys.stderr, flush=True)
        os._exit(3)
    if how == "hang":
        time.sleep(600)
    n_ctx_train = fake.get("n_ctx_train", 131072)
    n_ctx = min(request.num_ctx or 4096, n_ctx_train)
    send(Ready(n_ctx, n_ctx_train, fake.get("memory_bytes", 1000), fake.get("capabilities", ["completion"])))


def answer(request: GenerateRequest) -> None:
    start_ns = time.perf_counter_ns()
    script = request.messages[-1]["content"] if request.kind == "chat" else request.prompt
    if request.tokens is not None:
        script = bytes(request.tokens).decode()
    if request.debug_render_only:
        send(Rendered(request.id, script, list(range(len(script.split())))))
        return
    told = {name: argument for name, _, argument in (word.partition(":") for word in script.split())}
    truncated = None
    if "!lost" in told:
        n_messages, n_tokens = map(int, told["!lost"].split(","))
        truncated = {"messages": n_messages, "tokens": n_tokens, "shifted": 0}
    n_cached = int(told.get("!cached", 0))
    if not script.startswith(BEFORE_PREFILL):
        n = len(script.split())
        send(Prefill(request.id, n, n_cached, n_cached, 0, truncated))
        if request.progress:
            send(Prefill(request.id, n, n_cached, n, 1_500_000, truncated))
    n_pieces = 0
    done_reason, stop = "stop", None
    for word in script.split():
        if request.id in canceled:
            return
        name, _, argument = word.partition(":")
        n_pieces += 1
        if name in ("!lost", "!cached"):
            continue
        if name == "!length":
            done_reason = "length"
        elif name == "!stop":
            stop = argument
            break
        elif name == "!error":
            fields = {"n_prompt": 10, "n_ctx": 4} if argument == "ContextLengthError" else {}
            send(Error(request.id, "scripted error", argument, "try less", fields))
            return
        else:
            act(request, word, name, argument)
    elapsed_ns = time.perf_counter_ns() - start_ns
    n_thinking = sum(word.startswith("!think:") for word in script.split())
    stats = Stats(0, len(script.split()), 1000, n_pieces, elapsed_ns, n_cached, n_thinking)
    send(Done(request.id, done_reason, stats, [1, 2, 3], truncated, stop))


def act(request: GenerateRequest, word: str, name: str, argument: str) -> None:
    if name == "!sleep":
        time.sleep(float(argument))
    elif name == "!crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "!exit":
        os._exit(3)
    elif name == "!hang":
        time.sleep(600)
    elif name == "!garbage":
        with lock:
            sys.stdout.buffer.write(b"\xff\xff\xff\xff garbage")
            sys.stdout.buffer.flush()
    elif name == "!forever":
        while request.id not in canceled:
            send(Chunk(request.id, "x"))
            time.sleep(0.01)
    elif name == "!figures":
        n = int(argument)
        send(Figures(Counts(prompt_tokens=n), Levels(1, 0, 8, n), [0, 1, *[0] * 14], 0.002))
    elif name == "!flood":
        for _ in range(int(argument)):
            send(Chunk(request.id, "x"))
    else:
        send(piece(request, word, name, argument))


def piece(request: GenerateRequest, word: str, name: str, argument: str) -> Chunk:
    if name == "!options":
        return Chunk(request.id, json.dumps(request.options))
    if name == "!request":
        return Chunk(request.id, json.dumps(request.to_json()))
    if name == "!load":
        return Chunk(request.id, json.dumps(loaded[-1].to_json()))
    if name == "!pid":
        return Chunk(request.id, str(os.getpid()))
    if name == "!text":
        return Chunk(request.id, base64.b64decode(argument).decode())
    if name == "!think":
        return Chunk(request.id, thinking=argument)
    if name == "!call":
        call = {"id": "call_abcd1234", "function": {"index": 0, "name": "add", "arguments": {"a": 1}}}
        return Chunk(request.id, tool_calls=[call])
    if name == "!logprobs":
        return Chunk(request.id, "a", logprobs=[{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [TINY]}])
    return Chunk(request.id, word + " ")


def embed(request: Embed) -> None:
    if request.inputs[0] == "!hang" or fails(request.id, request.inputs[0]):
        return
    vectors = [
        array.array("f", [len(item), i, request.dimensions, float(request.normalise), 0.1]).tobytes()
        for i, item in enumerate(request.inputs)
    ]
    n_tokens = [len(item) for item in request.inputs]
    encoded = [base64.b64encode(v).decode() for v in vectors]
    send(Embeddings(request.id, encoded, n_tokens, truncated=lost_of(request.inputs)))


def lost_of(texts: list) -> dict[str, int] | None:
    n_lost = [int(str(text).partition(":")[2]) for text in texts if str(text).startswith("!lost:")]
    return {"inputs": len(n_lost), "tokens": sum(n_lost)} if n_lost else None


def detokenize(request: Detokenize) -> None:
    if bad := [token for token in request.tokens if not 0 <= token < 128]:
        send(Error(request.id, f"tokens: ids must be in 0..127, not {bad[0]}", "RequestError"))
    else:
        send(Text(request.id, bytes(request.tokens).decode()))


def rank(request: Rank) -> None:
    if not fails(request.id, request.query):
        lengths = [len(text) for text in request.documents]
        send(Scores(request.id, [float(n) for n in lengths], lengths, truncated=lost_of(request.documents)))


def fails(request_id: str, text: object) -> bool:
    name, _, kind = str(text).partition(":")
    if name == "!error":
        fields = {"n_prompt": 10, "n_ctx": 4} if kind == "ContextLengthError" else {}
        send(Error(request_id, "scripted error", kind, "try less", fields))
    return name == "!error"


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stubborn = False
    while (message := read_frame(sys.stdin.buffer)) is not None:
        if isinstance(message, LoadRequest):
            stubborn = bool(message.model.params.get("fake", {}).get("stubborn"))
            load(message)
        elif isinstance(message, GenerateRequest):
            threading.Thread(target=answer, args=(message,), daemon=True).start()
        elif isinstance(message, Embed):
            embed(message)
        elif isinstance(message, Rank):
            rank(message)
        elif isinstance(message, Cancel):
            canceled.add(message.id)
        elif isinstance(message, Tokenize):
            send(Tokens(message.id, list(message.text.encode())))
        elif isinstance(message, Detokenize):
            detokenize(message)
        elif isinstance(message, Shutdown) and not stubborn:
            os._exit(0)
    while stubborn:
        time.sleep(1)
    os._exit(0)


main()
