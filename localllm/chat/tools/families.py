"""The ways of writing tool calls that models are known for, told by what their templates show; it renders nothing."""

from __future__ import annotations

from dataclasses import dataclass

from localllm.chat.tools.gemma_calls import GemmaCalls
from localllm.chat.tools.json_calls import JsonCalls
from localllm.chat.tools.named_calls import NAME, NamedCalls
from localllm.chat.tools.python_calls import PythonCalls
from localllm.chat.tools.syntax import Dropped, Syntax
from localllm.chat.tools.xml_calls import XmlCalls


@dataclass(frozen=True)
class Family:
    """`marks` are texts that a template of this family contains, all of them. Of several syntaxes which could read the
    same text the first one is asked first."""

    name: str
    marks: tuple[str, ...]
    syntaxes: tuple[Syntax, ...]


HERMES = JsonCalls(("<tool_call>",), ("</tool_call>",))
BARE = JsonCalls(("{", "["), is_only_first=True)

_PYTHON_TAG = "<|python_tag|>"
_FUNCTION = NamedCalls(("<function=",), rf"<function={NAME}>", ("</function>",))
LLAMA = (JsonCalls((_PYTHON_TAG,)), PythonCalls((_PYTHON_TAG,), runs_code=True), _FUNCTION, BARE)


def _function_elements(section: str) -> XmlCalls:
    begin, end = f"<{section}>", f"</{section}>"
    head = rf"(?:{begin}\s*)?<function=(?P<name>[^<>\s]+)>"
    argument = r"<parameter=(?P<key>[^>]+)>"
    return XmlCalls(
        (begin, "<function="), head, argument, "</parameter>", "</function>", (end,), marks=("<parameter=",)
    )


def _invocations(prefix: str, section: str, string: str = "") -> XmlCalls:
    """`<invoke name="f">` with `<parameter name="k">` inside; `string` is a pattern for one more attribute."""
    begin, end = f"<{prefix}{section}>", f"</{prefix}{section}>"
    call, argument = f"<{prefix}invoke", f"<{prefix}parameter"
    head = rf'(?:{begin}\s*)?{call} name="(?P<name>[^"]+)">'
    close, call_end = f"</{prefix}parameter>", f"</{prefix}invoke>"
    pattern = rf'{argument} name="(?P<key>[^"]+)"{string}>'
    return XmlCalls((begin, call), head, pattern, close, call_end, (end,), marks=(argument,))


_DSML = "｜DSML｜"
_STRING = r'(?:\s+string="(?P<string>true|false)")?'
_M3 = "]<]minimax[>["
_M3_PATTERN = r"\]<\]minimax\[>\["
_DEEPSEEK_SECTIONS = ("<｜tool▁calls▁begin｜>", "<｜tool_calls_begin｜>", "<｜tool calls begin｜>")

FAMILIES = (
    Family(
        "Kimi K3",
        ("<|open|>", "<|sep|>"),
        (
            XmlCalls(
                ("<|open|>tools<|sep|>", "<|open|>call "),
                r'(?:<\|open\|>tools<\|sep\|>\s*)?<\|open\|>call tool="(?P<name>[^"]+)"[^<]*<\|sep\|>',
                r'<\|open\|>argument key="(?P<key>[^"]+)"(?: type="(?:(?P<string>string)|\w+)")?<\|sep\|>',
                "<|close|>argument<|sep|>",
                "<|close|>call<|sep|>",
                ("<|close|>tools<|sep|>",),
            ),
            Dropped(("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>")),
        ),
    ),
    Family(
        "Kimi K2",
        ("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
        (
            NamedCalls(
                ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
                r"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>\s*"
                rf"(?P<id>(?:functions\.)?{NAME}(?::\d+)?)\s*<\|tool_call_argument_begin\|>",
                ("<|tool_call_end|>", "<|tool_calls_section_end|>"),
                marks=("<|tool_call_argument_begin|>",),
            ),
        ),
    ),
    Family("DeepSeek V3.2", (_DSML, "function_calls"), (_invocations(_DSML, "function_calls", _STRING),)),
    Family("DeepSeek V4", (_DSML,), (_invocations(_DSML, "tool_calls", _STRING),)),
    Family(
        "DeepSeek",
        ("<｜tool▁call▁begin｜>",),
        (
            NamedCalls(
                (*_DEEPSEEK_SECTIONS, "<｜tool▁call▁begin｜>"),
                r"(?:<｜tool[▁_ ]calls[▁_ ]begin｜>\s*)?<｜tool▁call▁begin｜>\s*"
                rf"(?:function<｜tool▁sep｜>)?{NAME}\s*(?:<｜tool▁sep｜>|\n)\s*(?:```json)?",
                ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
                marks=("<｜tool▁sep｜>",),
            ),
        ),
    ),
    Family(
        "Solar",
        ("<|tool_call:begin|>",),
        (
            NamedCalls(
                ("<|tool_calls|>", "<|tool_call:begin|>"),
                r"(?:<\|tool_calls\|>\s*)?<\|tool_call:begin\|>\s*(?P<id>[^\s<]+)?\s*"
                rf"<\|tool_call:name\|>\s*{NAME}\s*<\|tool_call:args\|>",
                ("<|tool_call:end|>", "<|calls|>"),
                marks=("<|tool_call:name|>", "<|tool_call:args|>"),
            ),
        ),
    ),
    Family(
        "MiniMax M3",
        (_M3,),
        (
            XmlCalls(
                (f"{_M3}<tool_call>", f"{_M3}<invoke "),
                rf'(?:{_M3_PATTERN}<tool_call>\s*)?{_M3_PATTERN}<invoke name="(?P<name>[^"]+)">',
                rf"{_M3_PATTERN}<(?P<key>[^<>/\s]+)>",
                f"{_M3}</{{key}}>",
                f"{_M3}</invoke>",
                (f"{_M3}</tool_call>",),
                marks=(_M3,),
            ),
        ),
    ),
    Family("MiniMax M2", ("<minimax:tool_call>",), (_invocations("", "minimax:tool_call"),)),
    Family("Glimmer", ("<atem:invoke",), (_invocations("atem:", "function_calls"),)),
    Family(
        "MiniCPM 5",
        ('<function name="', '<param name="'),
        (
            XmlCalls(
                ("<function ",),
                r'<function name="(?P<name>[^"]+)">',
                r'<param name="(?P<key>[^"]+)">',
                "</param>",
                "</function>",
            ),
        ),
    ),
    Family("Seed", ("<seed:tool_call>",), (_function_elements("seed:tool_call"),)),
    Family(
        "Hy 3",
        ("<tool_call:opensource>",),
        (
            XmlCalls(
                ("<tool_calls:opensource>", "<tool_call:opensource>"),
                rf"(?:<tool_calls:opensource>\s*)?<tool_call:opensource>\s*{NAME}\s*<tool_sep:opensource>",
                r"<arg_key:opensource>(?P<key>[^<]*)</arg_key:opensource>\s*<arg_value:opensource>",
                "</arg_value:opensource>",
                "</tool_call:opensource>",
                ("</tool_calls:opensource>",),
                marks=("<tool_sep:opensource>", "<arg_key:opensource>", "<arg_value:opensource>"),
            ),
        ),
    ),
    Family(
        "GLM",
        ("<tool_call>", "<arg_key>"),
        (
            XmlCalls(
                ("<tool_call>",),
                rf"<tool_call>\s*{NAME}\s*(?=<)",
                r"<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>",
                "</arg_value>",
                "</tool_call>",
                marks=("<arg_key>", "</arg_key>", "<arg_value>"),
            ),
            HERMES,
        ),
    ),
    Family("Qwen coder", ("<tool_call>", "<function="), (_function_elements("tool_call"), HERMES)),
    Family("Llama", (_PYTHON_TAG,), LLAMA),
    Family("functionary 3.1", ("<function=",), LLAMA),
    Family(
        "functionary 3.2",
        (">>>",),
        (Dropped((">>>all\n",)), NamedCalls((">>>",), rf">>>{NAME}\s*\n")),
    ),
    Family(
        "Gemma 4",
        ("<|tool_call>", "<tool_call|>"),
        (GemmaCalls(("<|tool_call>",), ("<tool_call|>",), '<|"|>'),),
    ),
    Family(
        "FunctionGemma",
        ("<start_function_call>",),
        (GemmaCalls(("<start_function_call>",), ("<end_function_call>",), "<escape>"),),
    ),
    Family("LFM2", ("<|tool_call_start|>",), (PythonCalls(("<|tool_call_start|>",), ("<|tool_call_end|>",)),)),
    Family("LFM2", ("<|tool_list_start|>",), (PythonCalls(("<|tool_call_start|>",), ("<|tool_call_end|>",)),)),
    Family("LFM2.5", ("List of tools: [",), (PythonCalls(("<|tool_call_start|>",), ("<|tool_call_end|>",)),)),
    Family("Llama 4", ("<|python_start|>",), (PythonCalls(("<|python_start|>",), ("<|python_end|>",)), BARE)),
    Family("Gemma 3", ("```tool_code",), (PythonCalls(("```tool_code",), ("```",)),)),
    Family("Olmo 3", ("<function_calls>",), (PythonCalls(("<function_calls>",), ("</function_calls>",)),)),
    Family(
        "Mistral",
        ("[TOOL_CALLS]",),
        (
            NamedCalls(
                ("[TOOL_CALLS]",),
                rf"\[TOOL_CALLS\]\s*{NAME}\s*(?:\[CALL_ID\]\s*(?P<id>[^\s\[]+)\s*)?(?:\[ARGS\])?",
                marks=("[CALL_ID]", "[ARGS]"),
            ),
            JsonCalls(("[TOOL_CALLS]",)),
        ),
    ),
    Family("Command R7B", ("<|START_ACTION|>",), (JsonCalls(("<|START_ACTION|>",), ("<|END_ACTION|>",)),)),
    Family("Command R", ("Action:", "tool_name"), (JsonCalls(("Action:",)),)),
    Family("firefunction", ("functools[",), (JsonCalls(("functools[",)),)),
    Family("Phi 4 mini", ("<|/tool_call|>",), (JsonCalls(("<|tool_call|>", "functools["), ("<|/tool_call|>",)),)),
    Family("Phi 4 mini", ("<|tool|>", "<|/tool|>"), (JsonCalls(("<|tool_call|>", "functools["), ("<|/tool_call|>",)),)),
    Family("Granite", ("<|tool_call|>",), (JsonCalls(("<|tool_call|>", "<tool_call>"), ("</tool_call>",)),)),
    Family("Nemotron", ("<TOOLCALL>",), (JsonCalls(("<TOOLCALL>",), ("</TOOLCALL>",)),)),
    Family("Apriel, MiniMax M1", ("<tool_calls>",), (JsonCalls(("<tool_calls>",), ("</tool_calls>",)),)),
    Family("Apertus", ("<|tools_prefix|>",), (JsonCalls(("<|tools_prefix|>",), ("<|tools_suffix|>",)),)),
    Family("GigaChat", ("<|function_call|>",), (JsonCalls(("<|function_call|>",)),)),
    Family(
        "GigaChat 3",
        ("function call<|role_sep|>",),
        (JsonCalls(("<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>")),),
    ),
    Family("Hermes", ("<tool_call>",), (HERMES,)),
)


def family_of(text: str) -> Family | None:
    """The first family all of whose marks are in a text: what a template writes, or its source."""
    return next((family for family in FAMILIES if all(mark in text for mark in family.marks)), None)
