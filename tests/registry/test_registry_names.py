"""The grammar of names, its edges, and that no name leads out of the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import InvalidNameError, Name, Store, parse_name

hosts = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}", fullmatch=True)
namespaces = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}", fullmatch=True)
models = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}", fullmatch=True)
names = st.builds(Name, hosts, namespaces, models, models, st.sampled_from(["https", "http"]))


@pytest.mark.parametrize(
    ("text", "full", "short"),
    [
        ("llama3", "registry.ollama.ai/library/llama3:latest", "llama3:latest"),
        ("llama3:8b", "registry.ollama.ai/library/llama3:8b", "llama3:8b"),
        ("me/llama3", "registry.ollama.ai/me/llama3:latest", "me/llama3:latest"),
        ("hf.co/me/m:Q4_K_M", "hf.co/me/m:Q4_K_M", "hf.co/me/m:Q4_K_M"),
        ("localhost:5000/a/b", "localhost:5000/a/b:latest", "localhost:5000/a/b:latest"),
        ("http://h:80/a/b:c", "http://h:80/a/b:c", "h:80/a/b:c"),
        ("HTTPS://h/a/b", "h/a/b:latest", "h/a/b:latest"),
        ("  llama3 \n", "registry.ollama.ai/library/llama3:latest", "llama3:latest"),
        ("Registry.Ollama.AI/Library/x", "Registry.Ollama.AI/Library/x:latest", "x:latest"),
        ("_/_:_", "registry.ollama.ai/_/_:_", "_/_:_"),
    ],
)
def test_forms(text: str, full: str, short: str) -> None:
    assert str(parse_name(text)) == full
    assert parse_name(text).short == short


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ":", ":tag", "a:", "/", "a/", "/a", "a//b", "a/b/c/d", "http://a", "http://a/b", "ftp://h/a/b",
        ".", "..", "../a", "a/..", "a:..", "a:.x", "-a", "a:-b", "a b", "a\n:b", "a\0", "a\\b", "a@sha256", "é", "٣",
        "a.b/c", "h/a.b/c", "~/x", "a/b:c:d", "a:b/c/d/e", "%2e%2e/x",
    ],
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(InvalidNameError, match=r"^invalid model name$") as caught:
        parse_name(text)
    assert caught.value.name == text
    assert caught.value.reason


@pytest.mark.parametrize(
    ("pattern", "limit"), [("{}/n/m:t", 350), ("h/{}/m:t", 80), ("h/n/{}:t", 80), ("h/n/m:{}", 80)]
)
def test_lengths_end_exactly_at_the_limit(pattern: str, limit: int) -> None:
    parse_name(pattern.format("x" * limit))
    with pytest.raises(InvalidNameError) as caught:
        parse_name(pattern.format("x" * (limit + 1)))
    assert str(limit + 1) in caught.value.reason


@given(names)
def test_parse_of_str_is_the_identity(name: Name) -> None:
    again = parse_name(str(name))
    assert (again, again.scheme) == (name, name.scheme)


@given(names)
def test_short_form_means_the_same_model(name: Name) -> None:
    assert parse_name(name.short).key == name.key


@given(st.one_of(st.text(), st.text("./\\:~-_a0\0 ", max_size=30), names.map(str)))
def test_any_text_is_refused_or_stays_in_the_store(text: str) -> None:
    root = Path("/store/manifests")
    try:
        name = parse_name(text)
    except InvalidNameError:
        return
    path = root.joinpath(*name.parts)
    assert path.is_relative_to(root)
    assert len(path.relative_to(root).parts) == 4
    assert not {".", ".."} & set(path.parts)
    assert "\\" not in str(path) and "\0" not in str(path)


@given(st.lists(st.text(max_size=6), min_size=4, max_size=4))
def test_a_name_made_by_hand_obeys_the_grammar_too(parts: list[str]) -> None:
    try:
        name = Name(*parts)
    except InvalidNameError:
        return
    assert parse_name(str(name)) == name


def test_scheme_is_no_part_of_the_identity() -> None:
    assert parse_name("http://h/a/b") == parse_name("h/a/b")


def test_names_are_found_whatever_the_case(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = tmp_path / "manifests" / "Hub" / "Me"
    for model in ("Foo", "foo"):
        (folder / model).mkdir(parents=True)
        (folder / model / "Tag").write_bytes(b"{}")
    (tmp_path / "manifests" / "hub" / "me" / "other").mkdir(parents=True)
    (tmp_path / "manifests" / "hub" / "me" / "other" / "tag").write_bytes(b"{}")
    assert store.find(parse_name("hub/me/foo:tag")) == Name("Hub", "Me", "foo", "Tag")
    assert store.find(parse_name("HUB/ME/FOO:TAG")) == Name("Hub", "Me", "Foo", "Tag")
    assert store.find(parse_name("HUB/ME/OTHER:TAG")) == Name("hub", "me", "other", "tag")
    assert store.find(parse_name("hub/me/foo:nope")) is None
    assert store.find(parse_name("nope")) is None
