"""The prompt formats that Ollama knows by name, as their models' authors describe them; it knows no one model.

A format is what stands around each kind of message. Its Go template is made from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Around = tuple[str, str]


@dataclass(frozen=True)
class KnownTemplate:
    """A format: the texts before and after a message of each role.

    `begins_turn`: the system text and the user message after it are one turn, so that only the first of the two is
    opened. `opening` is what the answer follows on (None: what stands before an answer). `eos` is the text of the end
    token, which templates name by `eos_token`. `is_native`: the source in which the format was found works by itself.
    """

    name: str
    system: Around
    user: Around
    answer: Around
    stops: tuple[str, ...]
    opening: str | None = None
    begins_turn: bool = False
    eos: str = "</s>"
    options: Mapping[str, Any] = field(default_factory=dict)
    is_native: bool = True

    @property
    def params(self) -> dict[str, Any]:
        """The default options of a model of this format: where it stops, and what its authors advise."""
        return {"stop": list(self.stops), **self.options}

    @cached_property
    def template(self) -> str:
        """The Go template. A last message of the assistant is left open, as the beginning of an answer."""
        opening = self.answer[0] if self.opening is None else self.opening
        user = f"{{{{ if not $begun }}}}{self.user[0]}{{{{ end }}}}" if self.begins_turn else self.user[0]
        begun, ended = ("{{ $begun = true }}", "{{ $begun = false }}") if self.begins_turn else ("", "")
        return (
            ("{{ $begun := false }}" if self.begins_turn else "")
            + "{{ range $i, $_ := .Messages }}{{ $isLast := eq (len (slice $.Messages $i)) 1 }}"
            + f'{{{{ if eq .Role "system" }}}}{self.system[0]}{{{{ .Content }}}}{self.system[1]}{begun}'
            + f'{{{{ else if eq .Role "assistant" }}}}{self.answer[0]}{{{{ .Content }}}}'
            + f"{{{{ if not $isLast }}}}{self.answer[1]}{{{{ end }}}}"
            + f"{{{{ else }}}}{user}{{{{ .Content }}}}{self.user[1]}{ended}{{{{ end }}}}"
            + f'{{{{ if and $isLast (ne .Role "assistant") }}}}{opening}{{{{ end }}}}{{{{ end }}}}'
        )


def _tagged(name: str, before: str, after: str, roles: tuple[str, str, str], stops: tuple[str, ...]) -> KnownTemplate:
    """A format that writes the role of each message between two texts of one kind; `before` names it as ROLE."""
    system, user, answer = ((before.replace("ROLE", role), after) for role in roles)
    return KnownTemplate(name, system, user, answer, stops)


ROLES = ("system", "user", "assistant")

KNOWN: tuple[KnownTemplate, ...] = (
    _tagged(
        "alfred",
        "<start_ROLE>",
        "<end_message>",
        ROLES,
        ("<start_system>", "<end_message>", "<start_user>", "<start_assistant>"),
    ),
    KnownTemplate(
        "alpaca",
        ("", "\n\n"),
        ("### Instruction:\n", "\n\n"),
        ("### Response:\n", "\n\n"),
        ("### Instruction:", "### Response"),
    ),
    _tagged("chatml", "<|im_start|>ROLE\n", "<|im_end|>\n", ROLES, ("<|im_start|>", "<|im_end|>")),
    KnownTemplate(
        "chatqa",
        ("System: ", "\n\n"),
        ("User: ", "\n\n"),
        ("Assistant: ", "\n\n"),
        ("System:", "User:", "Assistant:", "<|begin_of_text|>"),
        opening="Assistant:",
    ),
    KnownTemplate(
        "codellama-70b-instruct",
        ("Source: system\n\n ", " <step> "),
        ("Source: user\n\n ", " <step> "),
        ("Source: assistant\n\n ", " <step> "),
        ("Source:", "Destination:", "<step>"),
        opening="Source: assistant\nDestination: user\n\n ",
    ),
    _tagged(
        "command-r",
        "<|START_OF_TURN_TOKEN|><|ROLE_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
        ("SYSTEM", "USER", "CHATBOT"),
        ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    ),
    KnownTemplate(
        "falcon-instruct",
        ("System: ", "\n"),
        ("User:\n", "\n"),
        ("Falcon:\n", "\n"),
        ("User:", "Assistant:"),
    ),
    KnownTemplate(
        "gemma-instruct",
        ("<start_of_turn>user\n", "\n"),
        ("<start_of_turn>user\n", "<end_of_turn>\n"),
        ("<start_of_turn>model\n", "<end_of_turn>\n"),
        ("<start_of_turn>", "<end_of_turn>"),
        begins_turn=True,
    ),
    KnownTemplate(
        "gemma3-instruct",
        ("<start_of_turn>user\n", "\n\n"),
        ("<start_of_turn>user\n", "<end_of_turn>\n"),
        ("<start_of_turn>model\n", "<end_of_turn>\n"),
        ("<end_of_turn>",),
        begins_turn=True,
        options={"temperature": 0.1},
    ),
    KnownTemplate(
        "granite-instruct",
        ("System:\n", "\n\n"),
        ("Question:\n", "\n\n"),
        ("Answer:\n", "\n\n"),
        ("System:", "Question:", "Answer:"),
    ),
    KnownTemplate(
        "llama2-chat",
        ("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
        ("[INST] ", " [/INST]"),
        (" ", " </s><s>"),
        ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"),
        opening="",
        begins_turn=True,
    ),
    _tagged(
        "llama3-instruct",
        "<|start_header_id|>ROLE<|end_header_id|>\n\n",
        "<|eot_id|>",
        ROLES,
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
    KnownTemplate(
        "magicoder",
        ("", "\n\n"),
        ("@@ Instruction\n", "\n\n"),
        ("@@ Response\n", "\n\n"),
        ("@@ Instruction", "@@ Response"),
    ),
    KnownTemplate(
        "mistral-instruct",
        ("[INST] ", "\n\n"),
        ("[INST] ", "[/INST]"),
        (" ", "</s>"),
        ("<|im_start|>", "<|im_end|>"),  # which a model of this format never writes: Ollama's, kept
        opening="",
        begins_turn=True,
    ),
    KnownTemplate(
        "openchat",
        ("GPT4 Correct System: ", "<|end_of_turn|>"),
        ("GPT4 Correct User: ", "<|end_of_turn|>"),
        ("GPT4 Correct Assistant: ", "<|end_of_turn|>"),
        ("<|end_of_turn|>",),
        opening="GPT4 Correct Assistant:",
        eos="<|end_of_turn|>",
    ),
    _tagged("phi-3", "<|ROLE|>\n", "<|end|>\n", ROLES, ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")),
    KnownTemplate(
        "solar-instruct",
        ("### System:\n", "\n\n"),
        ("### User:\n", "\n\n"),
        ("### Assistant:\n", "</s>\n\n"),
        ("### System:", "### User:", "### Assistant"),
    ),
    KnownTemplate(
        "starcoder2-instruct",
        ("", "\n\n"),
        ("### Instruction\n", "\n\n"),
        ("### Response\n", "<|endoftext|>\n\n"),
        ("### Instruction", "### Response", "<|endoftext|>"),
        eos="<|endoftext|>",
    ),
    KnownTemplate(
        "vicuna",
        ("", "\n\n"),
        ("USER: ", "\n"),
        ("ASSISTANT: ", "</s>\n"),
        ("USER:", "ASSISTANT:"),
        opening="ASSISTANT:",
    ),
    _tagged("zephyr", "<|ROLE|>\n", "</s>\n", ROLES, ("<|system|>", "</s>", "<|user|>", "<|assistant|>")),
)
