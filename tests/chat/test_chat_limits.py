"""Hostile templates end soon, as an error, without filling the memory."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from localllm.chat import ChatTemplate
from localllm.chat.budget import Budget
from localllm.errors import TemplateError

USER = {"role": "user", "content": "u" * 100}
BIG = "{% set ns = namespace(s='x' * 1000000) %}"

HOSTILE = {
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "range too long": "{% for a in range(10**9) %}{% endfor %}",
    "list that grows": "{% set l = [1] %}{% for x in l %}{% set _ = l.append(1) %}{% endfor %}",
    "filter that grows": "{% set l = [1] %}{% for x in l if l.append(1) %}{% endfor %}",
    "string product": "{{ 'x' * 10**10 }}",
    "list product": "{% set l = [0] * 10**10 %}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "growing power": "{% set ns = namespace(n=3) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "doubling": BIG + "{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubling by plus": BIG + "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "output": BIG + "{% for i in range(99999) %}{{ ns.s }}{% endfor %}",
    "captured output": BIG + "{% set x %}{% for i in range(99999) %}{{ ns.s }}{% endfor %}{% endset %}",
    "constant output": "{% for i in range(99999) %}" + "x" * 10000 + "{% endfor %}",
    "padding": "{{ 'x'.ljust(10**10) }}",
    "zfill": "{{ 'x'.zfill(10**10) }}",
    "center filter": "{{ 'x' | center(10**10) }}",
    "percent width": "{{ '%10000000000d' % 1 }}",
    "format width": "{{ '{:>10000000000}'.format(1) }}",
    "format filter": "{{ '%10000000000d' | format(1) }}",
    "replace": BIG + "{{ ns.s.replace('x', ns.s) }}",
    "replace filter": BIG + "{{ ns.s | replace('x', ns.s) }}",
    "join": BIG + "{{ ns.s.join(ns.s) }}",
    "join filter": BIG + "{{ ns.s | join(ns.s) }}",
    "indent": "{{ ('x\\n' * 100000) | indent(100000000) }}",
    "tojson indent": "{{ [1] | tojson(indent=10**9) }}",
    "shared structure": "{% set ns = namespace(l=['x']) %}{% for i in range(80) %}{% set ns.l = [ns.l, ns.l] %}"
    "{% endfor %}{{ ns.l }}",
    "shared structure as JSON": "{% set ns = namespace(l=['x']) %}{% for i in range(80) %}{% set ns.l = [ns.l, ns.l] %}"
    "{% endfor %}{{ ns.l | tojson }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "exponential recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(90) }}",
    "recursive loop": "{% set l = [] %}{% set _ = l.append(l) %}{% set _ = l.append(l) %}"
    "{% for x in l recursive %}{% if loop.depth < 90 %}{{ loop(x) }}{% endif %}{% endfor %}",
    "blocks": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "precision": "{{ 1.5 | round(10**9, 'ceil') }}",
    "lipsum": "{{ lipsum(n=10**9) }}",
    "internals": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "the budget": "{{ environment.budget }}{{ self.environment }}{{ nothing.at.all }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name: str) -> None:
    tracemalloc.start()
    started = time.monotonic()
    try:
        with pytest.raises(TemplateError):
            template = ChatTemplate(HOSTILE[name], budget=Budget(max_seconds=1.0, max_chars=20_000_000))
            template.render([USER])
        assert time.monotonic() - started < 10
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()


def test_internals_are_not_shown() -> None:
    for source in ("{{ raise_exception.__globals__ }}", "{{ strftime_now.__code__ }}", "{{ messages.__class__ }}"):
        assert ChatTemplate(source).render([USER]) == ""


def test_a_long_conversation_is_no_attack() -> None:
    template = ChatTemplate(None)
    messages = [{"role": "user", "content": "word " * 2000}, {"role": "assistant", "content": "word " * 200}] * 500
    assert len(template.render(messages)) > 5_000_000


def test_a_source_too_long_is_refused() -> None:
    with pytest.raises(TemplateError, match="longer than"):
        ChatTemplate("x" * 2_000_000)


def test_each_rendering_has_a_budget_of_its_own() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", budget=Budget(max_chars=10_000))
    for _ in range(300):
        assert template.render([USER]) == USER["content"]
