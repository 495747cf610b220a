"""All scenarios by name, and how one is set up and run; what a scenario does is in a module of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring.load.exact import Exact
from measuring.load.lookup import Lookup
from measuring.load.mixed import Mixed
from measuring.load.restart import Restart
from measuring.load.rounds import Figures, Found, Must, medians, take
from measuring.load.shared import Shared
from measuring.load.sides import Side, Sizes, start_ours
from measuring.load.soak import Soak
from measuring.load.stall import Stall
from measuring.load.texts import Texts
from measuring.servers import Daemon

Result = dict[str, Any]
LITTLE_CTX = 1024
"""Tokens of a context where there is little memory: the KV cache holds one of that length at least."""


@dataclass(frozen=True)
class Wanted:
    """What the command line says."""

    models: list[str]
    folder: Path
    sizes: Sizes
    n_rounds: int
    n_chats: int
    n_requests: int
    seed: int
    memory: str

    def texts(self, daemon: Daemon, model: str, of: str) -> Texts:
        """Texts of the seed, others for each use."""
        return Texts(daemon.count_tokens(model), f"{self.seed} {of}")


COMPARED: dict[str, Callable[[Wanted], Mixed | Stall | Shared]] = {
    "mixed": lambda wanted: Mixed(wanted.sizes.n_parallel, wanted.n_chats),
    "stall": lambda wanted: Stall(),
    "shared": lambda wanted: Shared(is_together=False),
    "together": lambda wanted: Shared(is_together=True),
}
"""Those that both servers run."""


def compare(name: str, sides: list[Side], ours: Daemon, wanted: Wanted) -> Result:
    """Take the rounds of one of COMPARED; `sides[0]` is `ours`."""
    made: Any = COMPARED[name](wanted)
    by_name = {side.name: side for side in sides}
    texts = [wanted.texts(ours, sides[0].model, f"{name} {i}") for i in range(wanted.n_rounds)]
    chats = [made.chats(each) for each in texts]

    async def run(side: str, i: int) -> Figures:
        tell(f"{name}: round {i + 1} of {wanted.n_rounds}, {side}")
        figures: Figures = await made.run(by_name[side], chats[i])
        return figures

    found = asyncio.run(take(list(by_name), wanted.n_rounds, run))
    return _result(name, found, made.musts(found))


def restart(wanted: Wanted) -> Result:
    """Rounds of Restart, each with a prompt of its own."""
    with closing(start_ours(wanted.folder, wanted.sizes)) as daemon:
        model = daemon.add(wanted.models[0])
        texts = wanted.texts(daemon, model, "restart")
        rounds = [Restart().run(daemon, model, texts) for _ in range(wanted.n_rounds)]
    return _ours("restart", rounds, [Must("TTFT after a restart, x cold", medians(rounds)["restart"], 0.15)])


def lookup(wanted: Wanted, is_sampled: bool = False) -> Result:
    """Rounds of Lookup, each with an edit of its own."""
    with closing(start_ours(wanted.folder, wanted.sizes)) as daemon:
        model = daemon.add(wanted.models[0])
        rounds = [Lookup(is_sampled=is_sampled).run(daemon, model, i) for i in range(wanted.n_rounds)]
    must = Must("decode with guesses, x without", medians(rounds)["lookup"], 1.5, is_floor=True)
    return _ours("sampled-lookup" if is_sampled else "lookup", rounds, [must])


def exact(wanted: Wanted) -> Result:
    """Exact on a daemon that has little room."""
    with closing(start_ours(wanted.folder, wanted.sizes, _little(wanted))) as daemon:
        model = daemon.add(wanted.models[0])
        made = Exact(wanted.n_requests)
        found = made.run(daemon, made.requests(model, wanted.texts(daemon, model, "exact")), tell)
    musts = [Must("answers that differ", found["different"], 0), Must("preemptions", found["preemptions"], 1, True)]
    return _ours("exact", [found], musts)


def soak(wanted: Wanted) -> Result:
    """Soak on a daemon that has little room, with all models."""
    with closing(start_ours(wanted.folder, wanted.sizes, _little(wanted))) as daemon:
        models = [daemon.add(model) for model in wanted.models]
        texts = wanted.texts(daemon, models[0], "soak")
        found = Soak(wanted.n_requests).run(daemon, models, texts, wanted.seed, tell)
    none = ("failed", "pages_used", "running", "more_processes", "more_files")
    growth = [Must(name, found[name], 1.05) for name in ("daemon_growth", "runner_growth")]
    return _ours("soak", [found], [*(Must(name, found[name], 0) for name in none), *growth])


OURS: dict[str, Callable[[Wanted], Result]] = {
    "restart": restart,
    "lookup": lookup,
    "sampled-lookup": lambda wanted: lookup(wanted, is_sampled=True),
    "exact": exact,
    "soak": soak,
}
"""Those of our daemon alone."""


def tell(line: str) -> None:
    """Progress, for people."""
    print(line, file=sys.stderr)


def _little(wanted: Wanted) -> dict[str, str | int]:
    """Settings of a daemon that has to share out memory."""
    return {"CONTEXT_LENGTH": LITTLE_CTX, **({"MAX_MEMORY": wanted.memory} if wanted.memory else {})}


def _ours(name: str, rounds: list[Figures], musts: list[Must]) -> Result:
    return _result(name, {"ours": rounds}, musts)


def _result(name: str, found: Found, musts: list[Must]) -> Result:
    """For the JSON."""
    middle = {side: medians(rounds) for side, rounds in found.items()}
    return {"scenario": name, **middle, "musts": [must.record() for must in musts], "rounds": found}
