"""Which of the server's models their registries have newer ones of, for `list` and `pull`; it pulls nothing."""

from collections.abc import Iterator, Sequence

from localllm import env
from localllm.client import Client
from modelfiles import read_catalog
from registry.catalog import Catalog
from registry.names import parse_name
from registry.outdated import Comparison, compare
from registry.remote import Access, Patience, key_path

PATIENCE = Patience(stall_s=15.0, connect_s=8.0, n_tries=2)


def compare_models(client: Client, insecure: bool, prefix: str = "") -> Iterator[Comparison]:
    """A comparison for each model whose name starts with `prefix`, whatever the letter case, as they come."""
    models: Sequence[tuple[str, str]] = [
        (str(model["name"]), str(model.get("digest", "")))
        for model in client.tags()
        if str(model["name"]).lower().startswith(prefix.lower()) and not model.get("remote_model")
    ]
    access = Access(insecure, key=key_path(env.state_dir()), patience=PATIENCE)
    return compare([(parse_name(name), digest) for name, digest in models], Catalog(read_catalog()), access)
