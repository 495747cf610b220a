"""The model store, for commands that need no server; errors of the store become those of the command line."""

from collections.abc import Iterator
from contextlib import contextmanager

from localllm import env
from localllm.errors import LocalLLMError
from registry.errors import BrokenModelError, ModelNotFoundError, RegistryError, SourceError
from registry.names import Name, parse_name
from registry.pull import local_name
from registry.store import ResolvedModel, Store


def names_by_digest() -> dict[str, list[str]]:
    """The names of the models in the store, by the digest of their weights."""
    store, found = Store(env.models_dir()), dict[str, list[str]]()
    for model in store.models():
        with _said():
            if digest := store.manifest(model.name).weights_digest:
                found.setdefault(digest, []).append(model.name.short)
    return found


def resolve(names: list[str]) -> list[ResolvedModel]:
    """The models of these names; without names all whose files are there. Raises: LocalLLMError."""
    store = Store(env.models_dir())
    if not names:
        return list(_whole(store))
    with _said():
        return [store.resolve(_name(text)) for text in names]


def digest_of(name: str) -> str | None:
    """The digest of a model's weights, None where the store has no such model. Raises: LocalLLMError."""
    with _said():
        try:
            return Store(env.models_dir()).resolve(_name(name)).model_digest
        except ModelNotFoundError:
            return None


def _whole(store: Store) -> Iterator[ResolvedModel]:
    for model in store.models():
        try:
            yield store.resolve(model.name)
        except BrokenModelError:
            continue  # `localllm run` says what it lacks


def _name(text: str) -> Name:
    try:
        return local_name(text)
    except SourceError:
        return parse_name(text)


@contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except ModelNotFoundError as error:
        raise LocalLLMError(str(error), hint="`localllm list` shows the models, `localllm pull` adds one") from error
    except RegistryError as error:
        raise LocalLLMError(str(error), hint=error.hint) from error
