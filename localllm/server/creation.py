"""The way from a checked request to a new model in the store, as the events that tell of it; it knows no HTTP.

    files or an existing model -> GGUFs in the store -> quantised, where asked for -> small layers -> manifest

Conversions happen in a process of their own (making.py); what they write lies in a staging folder until it is whole.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
from collections.abc import AsyncIterator, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localllm.gguf.header import Header
from localllm.quantize.presets import Preset
from localllm.server import lookup, model_files, pull
from localllm.server.daemon import Daemon
from localllm.server.errors import APIError
from localllm.server.making import make
from localllm.server.model_files import Files, Parts
from localllm.server.streaming import Record
from localllm.server.threads import Tell, in_thread, run_steps
from registry.create import ModelContents, ModelFacts, create_from_gguf
from registry.durable import require_space, writing
from registry.names import Name
from registry.progress import SUCCESS, Progress
from registry.sharing import digest_of_file
from registry.staging import Staging
from registry.store import ResolvedModel, Store

if TYPE_CHECKING:
    from localllm.chat.known import KnownTemplate

UNQUANTIZED = ("F16", "BF16", "F32")
# Ollama's clients show a bar for events that have a digest; what is being made has none yet.
NO_DIGEST = "0000000000000000000"
INHERITED = ("renderer", "parser", "requires")


@dataclass(frozen=True)
class Wanted:
    """What a model is to be made of; everything is checked, but not whether it is there. None is not said."""

    name: Name
    parent: str = ""
    files: Files | None = None
    adapters: Files = field(default_factory=dict)
    drafts: Files = field(default_factory=dict)
    preset: Preset | None = None
    draft_preset: Preset | None = None
    imatrix: str | None = None
    template: str | None = None
    system: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] | None = None
    licenses: list[str] = field(default_factory=list)
    config: Mapping[str, Any] = field(default_factory=dict)


async def create(daemon: Daemon, wanted: Wanted, tell: Tell) -> None:
    """Make the model, telling the events of it. Canceled, it leaves the store as it was."""
    parent = await _parent(daemon, wanted.parent, tell) if wanted.parent else None
    async with _staging(daemon.store) as staging:
        await _Creation(daemon, staging, wanted, parent, tell).run()


async def _parent(daemon: Daemon, text: str, tell: Tell) -> ResolvedModel:
    """The model of that name, pulled where it is not here or not whole."""
    name = lookup.model_name(text)
    try:
        return await lookup.resolve(daemon, name, text)
    except APIError as error:
        if error.status != 404:
            raise
    async with contextlib.aclosing(pull.events(daemon, text)) as events:
        async for event in events:
            if event != SUCCESS.to_json():  # that is for the whole to say
                tell(event)
    return await lookup.resolve(daemon, name, text)


@contextlib.asynccontextmanager
async def _staging(store: Store) -> AsyncIterator[Staging]:
    opened: list[Staging] = []
    try:
        await in_thread(lambda: opened.append(store.staging(secrets.token_hex(16))))
        yield opened[0]
    finally:
        for staging in opened:
            await in_thread(staging.close)


class _Creation:
    """One creation under way. `parts` are the files so far, `made` those of them that are new."""

    def __init__(
        self, daemon: Daemon, staging: Staging, wanted: Wanted, parent: ResolvedModel | None, tell: Tell
    ) -> None:
        self._store = daemon.store
        self._staging = staging
        self._wanted = wanted
        self._parent = parent
        self._tell = tell
        self._environment = _environment_of(daemon)
        self._parts = _parts_of(parent) if parent else Parts()
        self._made: set[str] = set()

    async def run(self) -> None:
        """Everything, to the end."""
        await in_thread(self._pin_files)
        await self._take_files()
        await self._take_adapters()
        await self._take_drafts()
        await self._quantize()
        paths = [self._store.blobs.path(digest) for digest in self._weights()]
        is_asked = self._wanted.template is None
        known = await in_thread(self._known_template, paths) if is_asked else None
        if known is not None:
            self._tell({"status": f"using autodetected template {known.name}"})
        contents = await in_thread(self._contents, paths, known)

        def write(cancel: threading.Event) -> Generator[Progress, None, None]:
            yield from create_from_gguf(self._store, self._wanted.name, contents)

        await run_steps(write, lambda event: self._tell(event.to_json()))

    # ---- the files of the request

    def _pin_files(self) -> None:
        """From now on nobody removes them as unused. Raises: APIError where one is not there."""
        wanted = self._wanted
        given = {"imatrix": wanted.imatrix} if wanted.imatrix else {}
        files = [*(wanted.files or {}).items(), *wanted.adapters.items(), *wanted.drafts.items(), *given.items()]
        mine = [*self._parts.weights, *self._parts.projectors, *self._parts.adapters, *self._parts.drafts]
        self._store.pin(self._staging, [*(digest for _, digest in files), *mine])
        for item in files:
            model_files.require_blobs(self._store.blobs, dict([item]))

    async def _take_files(self) -> None:
        files = self._wanted.files
        if files is None:
            return
        if await self._are_safetensors(files):
            self._add(Parts(weights=[await self._convert("convert_model", files, "converting model")]))
        else:
            self._add(await self._sorted(files))

    async def _take_adapters(self) -> None:
        files = self._wanted.adapters
        if files and await self._are_safetensors(files):
            base = str(self._store.blobs.path(self._weights()[0]))
            made = await self._convert("convert_adapter", files, "converting adapter", base=base)
            self._add(Parts(adapters=[made]))
        elif len(files) > 1:
            raise APIError(400, "only one adapter is currently supported")
        elif files:
            await self._sorted(files)
            self._add(Parts(adapters=list(files.values())))
        await in_thread(self._check_adapters)

    async def _are_safetensors(self, files: Files) -> bool:
        return await in_thread(model_files.format_of, self._store.blobs, files) == "safetensors"

    async def _sorted(self, files: Files) -> Parts:
        self._tell({"status": "parsing GGUF"})
        return await in_thread(model_files.sort_ggufs, self._store.blobs, files)

    def _check_adapters(self) -> None:
        if self._parts.adapters:
            with Header(self._store.blobs.path(self._weights()[0])) as base:
                for digest in self._parts.adapters:
                    model_files.check_adapter(self._store.blobs, digest, base.metadata)

    async def _take_drafts(self) -> None:
        files = self._wanted.drafts
        if not files:
            return
        if await self._are_safetensors(files):
            self._parts.drafts = [await self._convert("convert_model", files, "converting model")]
            return
        self._parts.drafts = (await self._sorted(files)).weights
        if not self._parts.drafts:
            raise APIError(400, "the draft files hold no model")

    def _weights(self) -> list[str]:
        if not self._parts.weights:
            raise APIError(400, "the files hold no model", hint="give the model's own GGUF too, or `from`")
        return self._parts.weights

    def _add(self, more: Parts) -> None:
        """The request's files join those of the parent. Raises: APIError where both bring a model."""
        parts = self._parts
        if more.weights and parts.weights:
            raise APIError(400, "both 'from' and 'files' bring a model", hint="name one of them")
        parts.weights = parts.weights or more.weights
        parts.projectors += more.projectors
        parts.adapters += more.adapters

    # ---- what is made of them

    async def _convert(self, job: str, files: Files, status: str, **more: str) -> str:
        """The digest of the GGUF that a folder of these files becomes."""
        blobs = self._store.blobs
        n_bytes = sum(blobs.size(digest) or 0 for digest in files.values())
        await in_thread(require_space, self._staging.path, n_bytes)
        folder = await in_thread(self._laid_out, files)
        made = await self._make({"job": job, "directory": str(folder), **more}, {"status": status})
        await in_thread(shutil.rmtree, folder.parent, True)
        return made

    async def _quantize(self) -> None:
        wanted, parts = self._wanted, self._parts
        if wanted.preset is not None:
            parts.weights = await self._quantized(self._weights(), wanted.preset, wanted.imatrix)
        if wanted.draft_preset is not None and parts.drafts:
            parts.drafts = await self._quantized(parts.drafts, wanted.draft_preset, None)

    async def _quantized(self, digests: list[str], preset: Preset, imatrix: str | None) -> list[str]:
        """The quantised model; the same one where it is of that type already."""
        paths = [self._store.blobs.path(digest) for digest in digests]
        file_type = (await in_thread(pull.inspect, paths)).file_type
        if file_type not in UNQUANTIZED:
            text = "quantization is only supported for F16, BF16 and F32 models"
            raise APIError(400, text, hint=f"this one is {file_type}")
        if file_type == preset.name:
            return digests
        job: dict[str, Any] = {"job": "quantize", "sources": [str(path) for path in paths], "preset": preset.name}
        if imatrix:
            job["imatrix"] = str(self._store.blobs.path(imatrix))
        return [
            await self._make(job, {"status": f"quantizing {file_type} model to {preset.name}", "digest": NO_DIGEST})
        ]

    async def _make(self, job: Mapping[str, Any], status: Record) -> str:
        """Run a job and bring what it wrote into the store; its digest."""
        path = self._staging.path / f"made-{secrets.token_hex(8)}"
        try:
            await make({**job, "destination": str(path)}, status, self._tell, self._environment)
        except APIError as error:
            # Where the files lie meanwhile means nothing to the client: it knows them by the names it gave.
            text = str(error).replace(f"{path}: ", "").replace(f"{job.get('directory')}/", "")
            raise APIError(error.status, text, hint=error.hint) from error
        self._tell({"status": "verifying conversion"})
        await in_thread(pull.inspect, [path])
        digest = await run_steps(lambda cancel: digest_of_file(path, cancel), lambda progress: None)
        await in_thread(self._store.pin, self._staging, [digest])
        await in_thread(self._store.blobs.adopt, path, digest)
        self._made.add(digest)
        return digest

    def _laid_out(self, files: Files) -> Path:
        """A folder in which the blobs have the names of the request; it has the model's, which the GGUF may get."""
        folder = self._staging.path / f"files-{secrets.token_hex(8)}" / self._wanted.name.model
        for name, digest in files.items():
            path = folder / name
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                _link(self._store.blobs.path(digest), path)
        return folder

    # ---- the small layers

    def _known_template(self, paths: list[Path]) -> KnownTemplate | None:
        """The known format that the GGUF's own template writes, where that is all that the model has."""
        # Jinja is loaded when it is needed, not when the daemon starts.
        from localllm.chat.known import detect

        if not paths or (self._parent and self._parent.template is not None):
            return None
        with Header(paths[0]) as header:
            jinja = header.metadata.get("tokenizer.chat_template")
        return detect(jinja) if isinstance(jinja, str) and jinja else None

    def _contents(self, paths: list[Path], known: KnownTemplate | None) -> ModelContents:
        """The parent's contents with what the request says instead; licences are added, parameters merged key by key.

        A known format's parameters are defaults; its Go template stands in for one of the GGUF that does not work.
        """
        wanted, parent, parts = self._wanted, self._parent, self._parts
        facts = pull.inspect(paths)
        if parts.projectors:
            facts = ModelFacts(facts.family, facts.n_parameters, facts.file_type, (facts.family, "clip"))
        inherited = known.template if known and not known.is_native else parent.template if parent else None
        messages = (parent.messages if parent else []) if wanted.messages is None else wanted.messages
        system = parent.system if parent else None
        config = parent.config.fields if parent else {}
        return ModelContents(
            weights=parts.weights,
            facts=facts,
            projectors=parts.projectors,
            adapters=parts.adapters,
            drafts=parts.drafts,
            config={**{key: config[key] for key in INHERITED if config.get(key)}, **wanted.config},
            origins=_origins(parent) if parent else {},
            made=self._made,
            template=inherited if wanted.template is None else wanted.template,
            system=system if wanted.system is None else wanted.system,
            params={**(known.params if known else {}), **(parent.params if parent else {}), **wanted.parameters},
            messages=messages,
            licenses=[*(parent.licenses if parent else []), *wanted.licenses],
        )


def _origins(parent: ResolvedModel) -> dict[str, str]:
    return {layer.digest: parent.name.short for layer in parent.manifest.layers}


def _parts_of(model: ResolvedModel) -> Parts:
    kinds = ("model", "projector", "adapter", "draft")
    return Parts(*([layer.digest for layer in model.manifest.of_kind(kind)] for kind in kinds))


def _environment_of(daemon: Daemon) -> dict[str, str]:
    folder = daemon.settings.cache_dir
    return {"LOCALLLM_CACHE_DIR": str(folder)} if folder else {}


def _link(blob: Path, path: Path) -> None:
    """The blob under another name, without a second copy where the file system can."""
    try:
        os.link(blob, path)
    except FileExistsError:  # names that are one here, as a.json and A.json may be; a copy would overwrite the blob
        raise
    except OSError:
        shutil.copyfile(blob, path)
