"""`hf.co/<user>/<repository>[:<quant>]`: a GGUF of Hugging Face's, whose hub speaks the registry's protocol itself.

The tag is a quant, in any case, or a whole file name; without one the hub chooses. Only a GGUF in several files it
does not serve that way. Then its list of files (`/api/models/<user>/<repository>/tree/main`) says which there are
and what sha256 they must have, and the model is made here, with the repository's own `template`, `system` and `params`.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from registry.create import ModelContents, store_layers, write_model
from registry.digests import parse_digest
from registry.download import Wants
from registry.errors import InvalidDigestError, ManifestError, NotInSourceError, RemoteError, UnreachableError
from registry.names import DEFAULT_TAG, Name, parse_name
from registry.progress import PULLING_MANIFEST, VERIFYING, Progress, check_canceled
from registry.remote import Remote
from registry.remote.credentials import HF_HOSTS
from registry.sources.base import Source, Wanted, inspect_blobs
from registry.sources.oci import bring_blobs, bring_model, read_manifest
from registry.store import Store

# The first of these that a repository has is what its name alone means.
PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "IQ4_XS", "Q3_K_M", "Q6_K", "Q8_0", "F16", "BF16", "F32")

_SHARD = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_MAX_PAGES = 100


@dataclass(frozen=True)
class HubFile:
    """A file of a repository; `digest` is `sha256:<hex>`, or "" for small ones, whose digest the list does not tell."""

    path: str
    size: int
    digest: str

    @property
    def name(self) -> str:
        """Without its folders."""
        return self.path.rpartition("/")[2]


class HFSource(Source):
    """A repository of the hub. `api_hosts`: the host of a name -> where the hub's list of files is."""

    def __init__(self, api_hosts: dict[str, str] | None = None) -> None:
        self._api_hosts = api_hosts or dict.fromkeys(HF_HOSTS, "huggingface.co")

    def has(self, name: Name) -> bool:
        """Whether a name is one of the hub's."""
        return name.host.lower() in self._api_hosts

    def local_name(self, location: str) -> Name:
        """The name itself."""
        return parse_name(location)

    def pull(self, wanted: Wanted, store: Store, cancel: threading.Event) -> Iterator[Progress]:
        """See Source.pull."""
        name = parse_name(wanted.location)
        with wanted.access.remote(name, cancel) as remote:
            yield PULLING_MANIFEST
            try:
                raw = read_manifest(remote)
            except ManifestError as error:
                if not (isinstance(error.__cause__, RemoteError) and error.__cause__.status == 400):
                    raise
                refusal = error
            else:
                yield from bring_model(wanted, store, remote, raw, cancel)
                return
        api = replace(name, host=self._api_hosts[name.host.lower()])
        with wanted.access.remote(api, cancel) as remote:
            yield from _pull_files(wanted, store, remote, refusal, cancel)


def _pull_files(
    wanted: Wanted, store: Store, remote: Remote, refusal: ManifestError, cancel: threading.Event
) -> Iterator[Progress]:
    """Make the model here of the files that its name means; `refusal` is what the hub said before."""
    try:
        files = list_files(remote)
        chosen = choose(files, remote.name.tag)
        small = {file.path: _text_at(remote, file) for file in files if file.path in ("template", "system", "params")}
    except (RemoteError, UnreachableError) as error:
        raise ManifestError(str(error), hint=error.hint) from error
    if not chosen:
        tags = ", ".join(sorted({_quant_of(file.name) for file in files if file.name.lower().endswith(".gguf")} - {""}))
        raise NotInSourceError(remote.name.short, hint=f"it has {tags}" if tags else refusal.reason)
    with store.staging(secrets.token_hex(16)) as staging:
        store.pin(staging, [file.digest for file in chosen])
        yield from bring_blobs(wanted, store, [_wants(remote, file) for file in chosen], cancel)
        digests = [file.digest for file in chosen]
        facts = inspect_blobs(wanted, store, staging, digests)
        yield VERIFYING
        check_canceled(cancel)
        contents = ModelContents(
            digests, facts, template=small.get("template"), system=small.get("system"), params=_params(small)
        )
        manifest, _ = store_layers(store, contents, staging)
        yield from write_model(store, wanted.name, manifest)


def list_files(remote: Remote) -> list[HubFile]:
    """All files of a repository. Raises RemoteError, UnreachableError, ManifestError."""
    name = remote.name
    path = f"/api/models/{name.namespace}/{name.model}/tree/main?recursive=true"
    files: list[HubFile] = []
    for _ in range(_MAX_PAGES):
        response = remote.send("GET", path)
        try:
            files += [_hub_file(item) for item in response.json() if item["type"] == "file"]
        except (ValueError, KeyError, TypeError, AttributeError, InvalidDigestError) as error:
            raise ManifestError(f"{remote.name.host} gave no list of files") from error
        following = response.links.get("next", {}).get("url")
        if not following:
            break
        path = following
    return files


def choose(files: Sequence[HubFile], tag: str) -> list[HubFile]:
    """The GGUF that a tag means, all its parts in order; empty where there is none whole and verifiable."""
    ggufs = [file for file in files if file.name.lower().endswith(".gguf") and "mmproj" not in file.name.lower()]
    models = _models(ggufs)
    wanted = PREFERRED if tag.lower() == DEFAULT_TAG else (tag,)
    for text in wanted:
        for parts in models:
            if _is_meant(parts[0], text):
                return parts
    return models[0] if models and tag.lower() == DEFAULT_TAG else []


def _models(ggufs: Sequence[HubFile]) -> list[list[HubFile]]:
    """The files of each GGUF, its parts in order; those that lack a part or a digest are left out."""
    found: dict[str, list[HubFile]] = {}
    for file in sorted(ggufs, key=lambda file: file.path):
        shard = _SHARD.fullmatch(file.path)
        found.setdefault(f"{shard['stem']} {shard['count']}" if shard else file.path, []).append(file)
    return [parts for parts in found.values() if all(part.digest for part in parts) and _is_whole(parts)]


def _is_whole(parts: Sequence[HubFile]) -> bool:
    shards = [shard for part in parts if (shard := _SHARD.fullmatch(part.path))]
    if not shards:
        return len(parts) == 1
    return [int(shard["part"]) for shard in shards] == list(range(1, int(shards[0]["count"]) + 1))


def _is_meant(file: HubFile, text: str) -> bool:
    """Whether `text` is the file's name (with or without its ending or its part's number) or its quant."""
    text = text.lower()
    shard = _SHARD.fullmatch(file.name)
    stem = (shard["stem"] if shard else file.name[: -len(".gguf")]).lower()
    return text in (file.name.lower(), stem, f"{stem}.gguf") or text == _quant_of(file.name).lower()


def _quant_of(file_name: str) -> str:
    """`Q4_K_M` of `x-Q4_K_M.gguf` or `x.q4_k_m-00001-of-00002.gguf`; "" for none."""
    shard = _SHARD.fullmatch(file_name)
    stem = shard["stem"] if shard else re.sub(r"\.gguf$", "", file_name, flags=re.IGNORECASE)
    match = re.search(r"(?:^|[-_.])((?:UD-)?(?:I?Q\d|TQ\d|MXFP4|BF16|F16|F32)\w*)$", stem, re.IGNORECASE)
    return match[1] if match else ""


def _hub_file(item: dict[str, Any]) -> HubFile:
    lfs = item.get("lfs")
    digest = parse_digest(f"sha256:{lfs['oid']}") if lfs else ""
    size = (lfs or item)["size"]
    if type(size) is not int or size < 0:
        raise ValueError(f"a file of {size!r} bytes")
    return HubFile(str(item["path"]), size, digest)


def _resolve_path(name: Name, file: HubFile) -> str:
    return f"/{name.namespace}/{name.model}/resolve/main/{quote(file.path)}"


def _wants(remote: Remote, file: HubFile) -> Wants:
    path = _resolve_path(remote.name, file)
    return Wants(file.digest, file.size, lambda headers: remote.stream("GET", path, headers=headers))


def _text_at(remote: Remote, file: HubFile) -> str:
    return remote.send("GET", _resolve_path(remote.name, file)).content.decode("utf-8", errors="replace")


def _params(small: dict[str, str]) -> dict[str, Any]:
    """The options that a repository sets; one that is not an object of JSON sets none."""
    try:
        document = json.loads(small.get("params") or "{}")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
