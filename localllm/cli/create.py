"""`localllm create MODEL`: makes a model from a Modelfile; what it names is brought to the server first."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from localllm.cli.arguments import exactly
from localllm.cli.components import Components, find_components
from localllm.cli.daemon import connect
from localllm.cli.progress import show_progress
from localllm.cli.uploads import bring
from localllm.client import Client
from localllm.errors import ModelfileError
from localllm.modelfile import Modelfile, decode, parse, read
from localllm.options import IGNORED
from modelfiles import family_modelfile

USAGE = "MODEL"
DEFAULT_FILE = "Modelfile"
# Far above any real one: what is longer, or never ends, is something else.
MAX_BYTES = 16 << 20


def command(
    names: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    file: Annotated[
        str,
        typer.Option(
            "--file",
            "-f",
            help="The Modelfile (default: Modelfile; - is standard input), or a family: llama3.1.",
        ),
    ] = "",
    quantize: Annotated[str, typer.Option("--quantize", "-q", help="Quantize to this type, such as Q4_K_M.")] = "",
    draft_quantize: Annotated[str, typer.Option("--draft-quantize", help="Quantize the draft model.")] = "",
    imatrix: Annotated[str, typer.Option("--imatrix", help="Importance matrix for --quantize.")] = "",
) -> None:
    """Make a model from a Modelfile; without one, from the model files in this folder."""
    (name,) = exactly(1, names)
    modelfile, folder = read_modelfile(file)
    components = find_components(modelfile, folder, Path(imatrix).expanduser() if imatrix else None)
    for parameter in IGNORED & set(modelfile.parameters):
        print(f"warning: parameter {parameter} is deprecated", file=sys.stderr)
    body = {"model": name, "quantize": quantize, "draft_quantize": draft_quantize, **_texts(modelfile)}
    with connect() as client:
        show_progress(_steps(client, body, components))


def read_modelfile(file: str) -> tuple[Modelfile, Path]:
    """The Modelfile, and the folder that its paths are relative to. Raises: ModelfileError."""
    if file == "-":
        return _read(sys.stdin.buffer, "standard input"), Path.cwd()
    path = Path(file or DEFAULT_FILE).expanduser()
    if not file and not path.exists():
        return Modelfile(sources=["."]), Path.cwd()
    try:
        with open(path, "rb") as opened:
            return _read(opened, f'"{path}"'), path.absolute().parent
    except FileNotFoundError:
        if (known := family_modelfile(file)) is not None:
            return read(parse(decode(known))), Path.cwd()
        raise ModelfileError(f'specified Modelfile wasn\'t found: "{path}"') from None
    except OSError as error:
        raise ModelfileError(f'cannot read "{path}": {error.strerror}') from error


def _read(file: BinaryIO, name: str) -> Modelfile:
    content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ModelfileError(f"{name} is longer than {MAX_BYTES >> 20} MiB", hint="a Modelfile was expected")
    return read(parse(decode(content)))


def _texts(modelfile: Modelfile) -> dict[str, Any]:
    return {
        "template": modelfile.template,
        "system": modelfile.system,
        "renderer": modelfile.renderer,
        "parser": modelfile.parser,
        "requires": modelfile.requires,
        "license": modelfile.licenses,
        "parameters": modelfile.parameters,
        "messages": modelfile.messages,
    }


def _steps(client: Client, body: dict[str, Any], components: Components) -> Iterator[dict[str, Any]]:
    """What is brought to the server, then what the server makes of it."""
    yield {"status": "gathering model components"}
    found: dict[str, Any] = {"from": components.model}
    for field in ("files", "adapters", "draft_files"):
        found[field] = yield from bring(client, getattr(components, field))
    matrix = yield from bring(client, components.imatrix)
    found["imatrix"] = next(iter(matrix.values()), "")
    yield from client.create({key: value for key, value in {**body, **found}.items() if value})
