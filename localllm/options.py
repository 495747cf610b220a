"""The table of model options: names, types, defaults, meanings; it knows nothing of sampling or of who asks.

Precedence: the default here < the model's PARAMETER layer < the request's `options`. A null is an absent
value, an integer option takes a JSON float (truncated), a number is never read from a string, and an
unknown name is logged once and ignored, all as Ollama does. What a model is given to keep is read strictly:
`check_names` of /api/create's values, `parse_parameter` of the texts of a Modelfile or of `/set parameter`.
"""

import copy
import difflib
import json
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localllm.env import KV_CACHE_TYPES
from localllm.errors import OptionError

logger = logging.getLogger(__name__)

_INT64_MAX = 2**63 - 1
_FLOAT_MAX = sys.float_info.max
_FLOAT32_MAX = float.fromhex("0x1.fffffep+127")
_logged_unknown: set[str] = set()


@dataclass(frozen=True)
class Option:
    """One row of the table. `type` is a key of the readers below; `minimum`/`maximum` are enforced, inclusive, and so
    are `choices`, beside which the default may be given."""

    name: str
    type: str
    default: Any
    meaning: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()


OPTIONS: tuple[Option, ...] = (
    Option("num_ctx", "integer", 0, "context length in tokens; 0 chooses (LOCALLLM_CONTEXT_LENGTH, else by memory)", 0),
    Option("num_batch", "integer", 0, "tokens of prompt evaluated in one step; 0 chooses", 0),
    Option(
        "kv_cache_type",
        "string",
        "",
        "type of the KV cache: f16, q8_0, q4_0 or f32; empty is LOCALLLM_KV_CACHE_TYPE",
        choices=KV_CACHE_TYPES,
    ),
    Option("num_gpu", "integer", -1, "layers on a GPU; accepted, this is a CPU backend"),
    Option("main_gpu", "integer", None, "accepted, this is a CPU backend"),
    Option("use_mmap", "boolean", None, "accepted; weights are always mapped"),
    Option("num_thread", "integer", 0, "threads; 0 is the number of physical cores", 0),
    Option("draft_num_predict", "integer", -1, "tokens guessed ahead at most; 0 is none, -1 as many as pay", -1),
    Option("draft_model", "string", "", "a smaller model of the same vocabulary that guesses ahead; empty is none"),
    Option("num_keep", "integer", 4, "tokens kept at the front when the context is shifted or the prompt cut"),
    Option("num_predict", "integer", -1, "tokens to generate at most; negative is 10 x num_ctx"),
    Option("seed", "integer", -1, "seed of the draw; negative is random"),
    Option("temperature", "float32", 0.8, "0 always takes the likeliest token"),
    Option("top_k", "integer", 40, "keep the k likeliest tokens; 0 is off"),
    Option("top_p", "float32", 0.9, "keep the likeliest tokens whose probabilities sum to p; 1 is off"),
    Option("min_p", "float32", 0.0, "drop tokens below this share of the likeliest one's probability"),
    Option("typical_p", "float32", 1.0, "locally typical sampling; 1 is off"),
    Option("top_n_sigma", "float32", -1.0, "drop tokens n standard deviations below the largest logit; <= 0 is off"),
    Option("repeat_last_n", "integer", 64, "tokens the repetition penalties look back on; 0 is off, -1 is num_ctx"),
    Option("repeat_penalty", "float32", 1.0, "penalty on repeated tokens; 1 is off"),
    Option("presence_penalty", "float32", 0.0, "penalty on tokens that have occurred"),
    Option("frequency_penalty", "float32", 0.0, "penalty on tokens for each time they have occurred"),
    Option("dry_multiplier", "float32", 0.0, "strength of the DRY penalty on repeated sequences; 0 is off"),
    Option("dry_base", "float32", 1.75, "growth of the DRY penalty for each further token of the sequence"),
    Option("dry_allowed_length", "integer", 2, "longest repeated sequence that DRY does not penalise"),
    Option("dry_penalty_last_n", "integer", -1, "tokens DRY looks back on; 0 is off, -1 is num_ctx"),
    Option("dry_sequence_breakers", "strings", ["\n", ":", '"', "*"], "texts that end a sequence for DRY"),
    Option("xtc_probability", "float32", 0.0, "chance of dropping the likeliest tokens (XTC); 0 is off"),
    Option("xtc_threshold", "float32", 0.1, "probability a token needs to be dropped by XTC; above 0.5 is off"),
    Option("dynatemp_range", "float32", 0.0, "temperature varies by this much with the entropy; 0 is off"),
    Option("dynatemp_exponent", "float32", 1.0, "how entropy maps to the dynamic temperature"),
    Option("mirostat", "integer", 0, "1 or 2 keeps perplexity at mirostat_tau; 0 is off", 0, 2),
    Option("mirostat_tau", "float32", 5.0, "target entropy of mirostat"),
    Option("mirostat_eta", "float32", 0.1, "learning rate of mirostat"),
    Option("min_keep", "integer", 0, "candidates that top_p, min_p and typical_p keep at least", 0),
    Option("n_probs", "integer", 0, "likeliest tokens to report at each position", 0),
    Option("logit_bias", "biases", {}, "added to logits: {token id or text: bias, or false to forbid it}"),
    Option("ignore_eos", "boolean", False, "never end at the model's end token"),
    Option("stop", "strings", [], "texts that end the answer and are not part of it"),
)
BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}

IGNORED = frozenset(
    ("penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock", "numa", "embedding_only")
)
"""Names from older Modelfiles: accepted, without effect."""


def resolve(defaults_from_model: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Every option's value for one request: table, then the model's params layer, then the request's options.

    Raises: OptionError in Ollama's words (`option "num_ctx" must be of type integer`) for a value of another
    type, or one outside the interval that the option allows.
    """
    values = {option.name: copy.copy(option.default) for option in OPTIONS}
    for layer in (defaults_from_model, request):
        for name, value in layer.items():
            if name in BY_NAME:
                if value is not None:
                    values[name] = _read(BY_NAME[name], value)
            else:
                _log_unknown(name)
    return values


def _log_unknown(name: str) -> None:
    if name not in IGNORED and name not in _logged_unknown and len(_logged_unknown) < 1000:
        _logged_unknown.add(name)
        logger.warning("invalid option provided: %.80r", name)


def _read(option: Option, value: Any) -> Any:
    typed = _READERS[option.type](option.name, value)
    _check_interval(option, typed)
    _check_choice(option, typed)
    return typed


def _check_interval(option: Option, value: Any) -> None:
    low, high = option.minimum, option.maximum
    if (low is not None and value < low) or (high is not None and value > high):
        interval = f"at least {low:g}" if high is None else f"in {low:g}..{high:g}"
        raise OptionError(f'option "{option.name}" must be {interval}, not {value}')


def _check_choice(option: Option, value: Any) -> None:
    if option.choices and value not in (*option.choices, option.default):
        raise OptionError(f'option "{option.name}" must be one of {", ".join(option.choices)}, not {value!r}')


def _wrong_type(name: str, expected: str) -> OptionError:
    return OptionError(f'option "{name}" must be {expected}')


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _FLOAT_MAX


def _is_float32(value: Any) -> bool:
    """Whether a number stays finite where it is computed with."""
    return _is_number(value) and abs(value) <= _FLOAT32_MAX


def _read_integer(name: str, value: Any) -> int:
    if not _is_number(value) or abs(value) > _INT64_MAX:
        raise _wrong_type(name, "of type integer")
    return int(value)


def _read_float(name: str, value: Any) -> float:
    if not _is_float32(value):
        raise _wrong_type(name, "of type float32")
    return float(value)


def _read_boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong_type(name, "of type boolean")
    return value


def _read_string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong_type(name, "of type string")
    return value


def _read_strings(name: str, value: Any) -> list[str]:
    if not isinstance(value, (list, tuple)):
        raise _wrong_type(name, "of type array")
    if not all(isinstance(item, str) for item in value):
        raise _wrong_type(name, "of an array of strings")
    return list(value)


def _read_biases(name: str, value: Any) -> dict[str, float]:
    """{token id (decimal) or text: bias}; llama.cpp's list of pairs is read too, `false` is minus infinity."""
    expected = "an object of token: bias, or an array of [token, bias]"
    if isinstance(value, (list, tuple)):
        if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in value):
            raise _wrong_type(name, expected)
        value = {str(token): bias for token, bias in value}
    if not isinstance(value, Mapping):
        raise _wrong_type(name, expected)
    if not all(bias is False or _is_float32(bias) for bias in value.values()):
        raise _wrong_type(name, expected)
    return {str(token): -math.inf if bias is False else float(bias) for token, bias in value.items()}


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "integer": _read_integer,
    "float32": _read_float,
    "boolean": _read_boolean,
    "string": _read_string,
    "strings": _read_strings,
    "biases": _read_biases,
}


def is_known(name: str) -> bool:
    """Whether a Modelfile may have a PARAMETER of this name."""
    return name in BY_NAME or name in IGNORED


def check_names(names: Iterable[str]) -> None:
    """Refuse names that are no option's. Raises: OptionError in Ollama's words, with a near-match hint."""
    for name in names:
        if not is_known(name):
            raise _unknown(name)


def _unknown(name: str) -> OptionError:
    return OptionError(f"unknown parameter '{name}'", hint=_near_match(name))


def parse_parameter(name: str, texts: Sequence[str]) -> Any:
    """The typed value of `PARAMETER name text` (all texts given for that name, in order; the last one counts, but
    lists take them all).

    Raises: OptionError in Ollama's words (`unknown parameter 'x'`, `invalid int value [x]`), with a near-match hint.
    """
    if name in IGNORED:
        return _parse_json(texts[-1], texts[-1])
    if name not in BY_NAME:
        raise _unknown(name)
    option = BY_NAME[name]
    if option.type == "biases":
        biases = _parse_json(texts[-1], None)
        _read_biases(name, biases)
        return biases
    value = list(texts) if option.type == "strings" else _parse_text(option, texts[-1])
    _check_interval(option, value)
    _check_choice(option, value)
    return value


def _parse_json(text: str, otherwise: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise


def _near_match(name: str) -> str | None:
    matches = difflib.get_close_matches(name.lower(), BY_NAME, n=1)
    return f"did you mean `{matches[0]}`?" if matches else None


_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))


def _parse_text(option: Option, text: str) -> Any:
    kind = {"integer": "int", "float32": "float", "boolean": "bool", "string": "string"}[option.type]
    if kind == "string":
        return text
    try:
        is_plain = text.isascii() and "_" not in text
        if kind == "int" and is_plain:
            return _read_integer(option.name, int(text))
        if kind == "float" and is_plain:
            return _read_float(option.name, float(text))
        if kind == "bool" and text in _TRUE | _FALSE:
            return text in _TRUE
    except (ValueError, OptionError):
        pass
    raise OptionError(f"invalid {kind} value [{text}]")
