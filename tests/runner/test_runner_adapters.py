"""Adapters in the runner: what is loaded and dropped when, and that they keep sequences apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernels_cpu.adapters import PLACES
from localllm.engine import Engine
from localllm.errors import RequestError
from localllm.gguf import open_gguf
from localllm.messages import Embed, Embeddings, Error, LoadRequest, ModelSpec
from localllm.runner.adapters import Adapters
from localllm.runner.batch import Batch
from localllm.runner.model import Model, load_model
from localllm.runner.outbox import Outbox


class Places:
    """An engine as far as adapters go; `size` are the bytes of each."""

    def __init__(self, size: int = 10) -> None:
        self.size = size
        self.free = list(range(PLACES))[::-1]
        self.log: list[str] = []

    def load_adapter(self, path: Path) -> tuple[int, int]:
        assert self.free
        if path.name == "bad":
            raise RequestError("bad adapter")
        self.log.append(f"+{path.name}")
        return self.free.pop(), self.size

    def drop_adapter(self, place: int) -> None:
        self.log.append(f"-{place}")
        self.free.append(place)


def wanted(*names: str, scale: float = 1.0) -> list[dict[str, Any]]:
    return [{"path": f"/blobs/{name}", "digest": name, "scale": scale} for name in names]


class TestAdapters:
    def test_one_is_loaded_once_and_kept(self) -> None:
        engine = Places()
        adapters = Adapters(engine)
        one = adapters.acquire(wanted("a"))
        two = adapters.acquire(wanted("a", "b"))
        assert engine.log == ["+a", "+b"]
        assert (one.key, two.key) == ((("a", 1.0),), (("a", 1.0), ("b", 1.0)))
        assert two.entries == ((0, 1.0), (1, 1.0))
        one.release()
        two.release()
        assert adapters.acquire(wanted("b")).entries == ((1, 1.0),) and engine.log == ["+a", "+b"]
        assert adapters.n_bytes == 20

    def test_the_models_own_unless_others_are_wanted(self) -> None:
        adapters = Adapters(Places(), wanted("own"))
        assert adapters.acquire(None).key == (("own", 1.0),)
        assert adapters.acquire([]).key == ()
        assert adapters.acquire(wanted("a")).key == (("a", 1.0),)
        assert Adapters(Places()).acquire(None).key == ()

    def test_the_order_does_not_matter_and_scales_add_up(self) -> None:
        adapters = Adapters(Places())
        one = adapters.acquire([*wanted("a"), *wanted("b", scale=0.5), *wanted("a")])
        other = adapters.acquire([*wanted("b", scale=0.5), *wanted("a", scale=2.0)])
        assert one.key == other.key == (("a", 2.0), ("b", 0.5)) and one.entries == other.entries

    def test_a_scale_of_0_loads_nothing(self) -> None:
        engine = Places()
        assert Adapters(engine).acquire(wanted("a", scale=0.0)).key == () and engine.log == []

    @pytest.mark.parametrize("scale", [float("nan"), float("inf"), "1", True, None])
    def test_scales_are_numbers(self, scale: Any) -> None:
        with pytest.raises(RequestError, match="scale of an adapter must be a number"):
            Adapters(Places()).acquire(wanted("a", scale=scale))

    def test_a_request_has_few_of_them(self) -> None:
        with pytest.raises(RequestError, match="at most 8 adapters can be used at once, not 9"):
            Adapters(Places()).acquire(wanted(*"abcdefghi"))

    def test_the_one_used_longest_ago_gives_way(self) -> None:
        engine = Places()
        adapters = Adapters(engine)
        for i in range(PLACES):
            adapters.acquire(wanted(f"x{i}")).release()
        kept = adapters.acquire(wanted("x0"))
        adapters.acquire(wanted("new")).release()
        assert engine.log[PLACES:] == ["-1", "+new"]
        kept.release()
        adapters.acquire(wanted("newer")).release()
        assert engine.log[-2:] == ["-2", "+newer"], "x0 was used after x2"

    def test_memory_is_bounded(self) -> None:
        engine = Places(40)
        adapters = Adapters(engine, max_bytes=100)
        held = adapters.acquire(wanted("a", "b"))
        adapters.acquire(wanted("c")).release()
        assert adapters.digests == ["a", "b", "c"], "what is used may be too much"
        adapters.acquire(wanted("d")).release()
        assert adapters.digests == ["a", "b", "d"]
        held.release()
        adapters.acquire(wanted("d")).release()
        adapters.acquire(wanted("e")).release()
        assert adapters.digests == ["d", "e"]

    def test_one_that_fails_leaves_the_others_unused(self) -> None:
        engine = Places()
        adapters = Adapters(engine, max_bytes=0)
        with pytest.raises(RequestError, match="bad adapter"):
            adapters.acquire(wanted("a", "bad"))
        adapters.acquire(wanted("c"))
        assert adapters.digests == ["c"]

    def test_releasing_twice_is_once(self) -> None:
        adapters = Adapters(Places(), max_bytes=0)
        first, second = adapters.acquire(wanted("a")), adapters.acquire(wanted("a"))
        first.release()
        first.release()
        adapters.acquire(wanted("b"))
        assert "a" in adapters.digests
        second.release()


class Loaded:
    """A tiny model with two adapters beside it, its preparation and batch in this thread."""

    def __init__(self, path: Path, adapters: list[dict[str, Any]], own: Sequence[dict[str, Any]] = ()) -> None:
        import io

        from localllm.runner.service import Preparation

        spec = ModelSpec("m", "d", [str(path)], "", adapters=list(own))
        request = LoadRequest(spec, num_ctx=256, num_batch=64, num_thread=2, num_parallel=4)
        self.model: Model = load_model(request, Outbox(io.BytesIO()))
        assert isinstance(self.model.engine, Engine) and self.model.adapters is not None
        self.engine, self.adapters, self.files = self.model.engine, self.model.adapters, adapters
        self.sent: list[Any] = []
        self.preparation = Preparation(self.model, self.sent.append)
        self.batch = Batch(self.engine, 4, self.sent.append, target_s=0)

    def submit(self, request_id: str, prompt: str, lora: Any, **fields: Any) -> None:
        from localllm import options
        from localllm.messages import GenerateRequest

        asked = {"temperature": 0, "num_predict": 12, **fields.pop("options", {})}
        request = GenerateRequest(
            request_id, "generate", prompt, raw=True, lora=lora, options=options.resolve({}, asked), **fields
        )
        work = self.preparation.handle(request)
        if work is not None:
            self.batch.submit(work)  # type: ignore[arg-type]

    def run(self) -> None:
        for _ in range(500):
            if not (self.batch._active or self.batch._waiting or self.batch._jobs):
                return
            self.batch.step()
        raise AssertionError("no end")

    def text(self, request_id: str) -> str:
        mine = [m for m in self.sent if m.id == request_id]
        assert mine[-1].type == "done", mine[-1]
        return "".join(m.text for m in mine if m.type == "chunk")

    def stats(self, request_id: str) -> Any:
        return next(m.stats for m in self.sent if m.id == request_id and m.type == "done")

    def generate(self, request_id: str, prompt: str, lora: Any, **fields: Any) -> str:
        self.submit(request_id, prompt, lora, **fields)
        self.run()
        return self.text(request_id)


PROMPT = "a long enough beginning of a prompt that is worth keeping for the next request, is it not"


@pytest.fixture(scope="module")
def files(
    tiny_models: ModuleType, lora_files: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("lora")
    tiny_models.random_model(folder / "model.gguf")
    adapters = []
    for recipe in (lora_files.FIRST, lora_files.SECOND):
        path = lora_files.adapter_for(folder / "model.gguf", folder / f"{recipe.name}.gguf", recipe)
        adapters.append({"path": str(path), "digest": recipe.name, "scale": 2.0})
    return folder / "model.gguf", adapters


@pytest.fixture(scope="module")
def open_runner(files: tuple[Path, list[dict[str, Any]]]) -> Iterator[Callable[..., Loaded]]:
    made: list[Loaded] = []

    def make(**fields: Any) -> Loaded:
        made.append(Loaded(*files, **fields))
        return made[-1]

    yield make
    for one in made:
        one.engine.close()


@pytest.fixture(scope="module")
def expected(open_runner: Callable[..., Loaded], files: tuple[Path, list[dict[str, Any]]]) -> dict[str, str]:
    """What each set of adapters says alone, in a runner that has seen nothing else."""
    _, (first, second) = files
    sets = {"none": [], "first": [first], "second": [second], "both": [first, second]}
    texts = {name: open_runner().generate("1", PROMPT, lora) for name, lora in sets.items()}
    assert len(set(texts.values())) == 4
    return texts


def test_requests_with_different_adapters_run_together(
    open_runner: Callable[..., Loaded], files: Any, expected: dict[str, str]
) -> None:
    runner, (first, second) = open_runner(), files[1]
    for name, lora in (("first", [first]), ("none", []), ("both", [second, first]), ("second", [second])):
        runner.submit(name, PROMPT, lora)
    for _ in range(5):
        runner.batch.step()
    assert len(runner.batch._active) == 4
    runner.run()
    assert {name: runner.text(name) for name in expected} == expected
    assert runner.adapters.digests == ["first", "second"] or runner.adapters.digests == ["second", "first"]


def test_a_kept_beginning_serves_only_the_same_adapters(
    open_runner: Callable[..., Loaded], files: Any, expected: dict[str, str]
) -> None:
    runner, (first, _) = open_runner(), files[1]
    half = {**first, "scale": 1.0}
    for i, (name, lora) in enumerate((("first", [first]), ("none", None), ("first", [first]), ("none", []))):
        assert runner.generate(str(i), PROMPT, lora) == expected[name]
    cached = [runner.stats(str(i)).prompt_eval_cached_count for i in range(4)]
    assert cached[:2] == [0, 0] and min(cached[2:]) > 50
    runner.generate("4", PROMPT, [half])
    assert runner.stats("4").prompt_eval_cached_count == 0, "another scale computes other keys"


def test_own_adapters_are_loaded_with_the_model(
    open_runner: Callable[..., Loaded], files: Any, expected: dict[str, str]
) -> None:
    runner = open_runner(own=[files[1][0]])
    assert runner.adapters.digests == ["first"]
    assert runner.generate("1", PROMPT, None) == expected["first"]
    assert runner.generate("2", PROMPT, []) == expected["none"]


def test_a_paused_request_keeps_its_adapters(
    open_runner: Callable[..., Loaded], files: Any, expected: dict[str, str]
) -> None:
    """It goes on where it was, with its adapter, after an interactive one without."""
    runner, (first, second) = open_runner(), files[1]
    runner.submit("background", PROMPT, [first], is_interactive=False)
    for _ in range(4):
        runner.batch.step()
    runner.submit("interactive", PROMPT, [second])
    runner.batch.step()
    runner.adapters._max_bytes = 0
    runner.adapters._make_room(0, 0)
    assert set(runner.adapters.digests) == {"first", "second"}
    runner.run()
    assert runner.text("background") == expected["first"] and runner.text("interactive") == expected["second"]
    runner.adapters._make_room(0, 0)
    assert runner.adapters.digests == []
    assert runner.generate("again", PROMPT, [first]) == expected["first"]


def test_whoever_is_canceled_lets_go(open_runner: Callable[..., Loaded], files: Any) -> None:
    runner, (first, _) = open_runner(), files[1]
    runner.submit("running", PROMPT, [first])
    runner.batch.step()
    runner.submit("waiting", PROMPT, [first])
    for request_id in ("waiting", "running"):
        runner.batch.cancel(request_id)
    runner.batch.step()
    runner.adapters._make_room(0, 0)
    assert runner.adapters.digests == []


def test_whoever_cannot_begin_lets_go(open_runner: Callable[..., Loaded], files: Any) -> None:
    runner = open_runner()

    def fail(tokens: Any, key: Any) -> None:
        raise MemoryError

    runner.preparation._model.engine.prefetch = fail
    runner.submit("failing", PROMPT, [files[1][0]])
    assert isinstance(runner.sent[-1], Error)
    runner.adapters._make_room(0, 0)
    assert runner.adapters.digests == []


def test_a_bad_adapter_fails_its_request_alone(
    open_runner: Callable[..., Loaded], files: Any, expected: dict[str, str], tmp_path: Path
) -> None:
    runner = open_runner()
    (tmp_path / "x").write_bytes(b"nothing")
    runner.submit("good", PROMPT, [files[1][0]])
    runner.submit("bad", PROMPT, [{"path": str(tmp_path / "x"), "digest": "x", "scale": 1.0}])
    runner.run()
    (error,) = [m for m in runner.sent if m.id == "bad"]
    assert isinstance(error, Error) and error.kind == "AdapterError" and "x: " in error.error
    assert runner.text("good") == expected["first"]


def test_embeddings_have_adapters_too(open_runner: Callable[..., Loaded], files: Any) -> None:
    runner = open_runner(own=[files[1][0]])
    vectors = {}
    for name, lora in (("own", None), ("none", []), ("other", [files[1][1]])):
        job = runner.preparation.handle(Embed(name, ["some text"], lora=lora))
        runner.batch.submit_job(job)  # type: ignore[arg-type]
        runner.run()
        (answer,) = [m for m in runner.sent if m.id == name]
        assert isinstance(answer, Embeddings)
        vectors[name] = answer.vectors[0]
    assert len(set(vectors.values())) == 3


def test_a_file_that_is_gone_is_no_trouble_once_loaded(
    open_runner: Callable[..., Loaded], files: Any, expected: dict[str, str], tmp_path: Path
) -> None:
    runner, (first, _) = open_runner(), files[1]
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(Path(first["path"]).read_bytes())
    lora = [{**first, "path": str(copy)}]
    assert runner.generate("1", PROMPT, lora) == expected["first"]
    copy.unlink()
    assert runner.generate("2", PROMPT, lora) == expected["first"]


def test_the_engine_of_a_model_without_adapters_has_one_tape(open_runner: Callable[..., Loaded], files: Any) -> None:
    """What makes steps with adapters is there from the first of them on."""
    with open_gguf(files[0]) as file:
        engine = Engine.load(file, n_ctx=64, n_threads=1)
        program: Any = engine.backend._program  # type: ignore[attr-defined]
        before = engine.memory_bytes
        assert program._adapted is None
        engine.load_adapter(Path(files[1][0]["path"]))
        assert program._adapted is not None and engine.memory_bytes > before
        engine.close()
