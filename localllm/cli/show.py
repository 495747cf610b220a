"""`localllm show MODEL`: what is known of a model, as blocks of plain columns."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from localllm.cli.arguments import UsageError, exactly
from localllm.cli.columns import format_columns
from localllm.cli.daemon import connect
from localllm.cli.human import format_count

USAGE = "MODEL"
SELECTORS = ("license", "modelfile", "parameters", "system", "template")
LINES_OF_TEXT_SHOWN = 2
_LIST_ITEMS_SHOWN = 5

Row = Sequence[str]


def command(
    names: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    license_: Annotated[bool, typer.Option("--license", help="Only the licence.")] = False,
    modelfile: Annotated[bool, typer.Option("--modelfile", help="Only the Modelfile.")] = False,
    parameters: Annotated[bool, typer.Option("--parameters", help="Only the parameters.")] = False,
    system: Annotated[bool, typer.Option("--system", help="Only the system message.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Only the template.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Metadata and tensors too.")] = False,
) -> None:
    """Show what is known of a model."""
    (name,) = exactly(1, names)
    chosen = [
        s for s, wanted in zip(SELECTORS, (license_, modelfile, parameters, system, template), strict=True) if wanted
    ]
    if len(chosen) > 1:
        raise UsageError(
            "only one of '--license', '--modelfile', '--parameters', '--system', or '--template' can be specified"
        )
    with connect() as client:
        answer = client.show(name, verbose=verbose)
    print(answer.get(chosen[0], "") if chosen else format_model(answer, verbose), end="\n" if chosen else "")


def format_model(answer: dict[str, Any], verbose: bool = False) -> str:
    """The blocks of an answer of /api/show; every block ends with an empty line."""
    blocks: list[tuple[str, Sequence[Row]]] = [("Model", _model_rows(answer))]
    for title, key in (("Capabilities", "capabilities"), ("Projector", "projector_info")):
        if answer.get(key):
            content = answer[key]
            blocks.append(
                (title, list(_metadata_rows(content)) if isinstance(content, dict) else [[c] for c in content])
            )
    if answer.get("parameters"):
        blocks.append(
            ("Parameters", [line.split(None, 1) for line in answer["parameters"].splitlines() if line.strip()])
        )
    if verbose:
        blocks.append(("Metadata", list(_metadata_rows(answer.get("model_info") or {}))))
        blocks.append(("Tensors", [_tensor_row(tensor) for tensor in answer.get("tensors") or []]))
    for title, key in (("System", "system"), ("License", "license")):
        if answer.get(key):
            blocks.append((title, _first_lines(answer[key])))
    return "".join(f"  {title}\n{format_columns(rows, indent='    ')}\n" for title, rows in blocks if rows)


def _model_rows(answer: dict[str, Any]) -> list[Row]:
    metadata, details = answer.get("model_info") or {}, answer.get("details") or {}
    architecture = metadata.get("general.architecture") or details.get("family") or ""
    n_parameters = metadata.get("general.parameter_count")
    facts = {
        "architecture": architecture,
        "parameters": format_count(int(n_parameters)) if n_parameters else details.get("parameter_size"),
        "context length": metadata.get(f"{architecture}.context_length"),
        "default context": answer.get("default_context_length"),
        "embedding length": metadata.get(f"{architecture}.embedding_length"),
        "quantization": details.get("quantization_level"),
        "requires": answer.get("requires"),
    }
    return [(name, str(value)) for name, value in facts.items() if value]


def _metadata_rows(metadata: dict[str, Any]) -> Iterator[Row]:
    for name, value in sorted(metadata.items()):
        yield name, _metadata_text(value)


def _metadata_text(value: Any) -> str:
    if isinstance(value, list):
        shown = ", ".join(_metadata_text(item) for item in value[:_LIST_ITEMS_SHOWN])
        rest = len(value) - _LIST_ITEMS_SHOWN
        return f"[{shown}, ...+{rest} more]" if rest > 0 else f"[{shown}]"
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value, ensure_ascii=False)


def _tensor_row(tensor: dict[str, Any]) -> Row:
    return str(tensor.get("name")), str(tensor.get("type")), str(tensor.get("shape"))


def _first_lines(text: str) -> list[list[str]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [[line] for line in lines[:LINES_OF_TEXT_SHOWN]] + ([["..."]] if len(lines) > LINES_OF_TEXT_SHOWN else [])
