"""Earlier forms of `config.json`, read as the present one.

Format 1 was written without a number by volvox before 2026-11. It named classes by words (`"kind": "ga"`), and had
`A3C`'s settings in groups.
"""

from collections.abc import Mapping
from typing import Any

_STRATEGIES = {"ga": "volvox:GA", "random_search": "volvox:GA", "es": "volvox:ES"}
_NOISES = {
    "table": "volvox.population:Table",
    "generator": "volvox.population:Generator",
    "low_rank": "volvox.population:LowRank",
}

_NAMES = {"volvox.envs:envpool_task": "volvox.envs:envpool"}


def upgraded(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what `config.json` holds, in the present format; it is returned as it is where it has that already.

    Of format 1 the runs of genetic algorithms, random search, evolution strategies and actor-critics are known; others
    are returned as they are, and what loads them says what it does not find.
    """
    config = _renamed(config)
    old = config["algorithm"]
    if "format" in config or not ("kind" in old.get("strategy", {}) or old.get("algorithm") == "a3c"):
        return dict(config)
    new = _actor_critic(old) if old["algorithm"] == "a3c" else _evolution(old)
    return {**config, "algorithm": {**new, "network": _network(old["network"]), "env": _env(old["env"])}}


def _renamed(value: Any) -> Any:
    """Replaces names of functions that are called otherwise now."""
    if isinstance(value, Mapping):
        return {name: _renamed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    return _NAMES.get(value, value) if isinstance(value, str) else value


def _evolution(old: Mapping[str, Any]) -> dict[str, Any]:
    strategy = {name: _number(value) for name, value in old["strategy"].items() if name != "kind"}
    kind = old["strategy"]["kind"]
    if kind == "random_search":
        strategy.pop("mutation_std")  # was 0, and means nothing without parents
    if "optimizer" in strategy:
        strategy["optimizer"] = _optimizer(strategy, strategy.pop("optimizer_options"))
    return {**old, "strategy": {"type": _STRATEGIES.get(kind, kind), **strategy}, "noise": _noise(old["noise"])}


def _actor_critic(old: Mapping[str, Any]) -> dict[str, Any]:
    others = ("algorithm", "network", "env", "schedule", "updates_per_step", "optimizer_options", "vtrace")
    settings = {name: value for name, value in old.items() if name not in (*others, "tuned", "given")}
    rho, c = old["vtrace"] or (1.0, 1.0)
    settings |= {**old["schedule"], "updates_per_iteration": old["updates_per_step"]}
    settings |= {"vtrace": old["vtrace"] is not None, "rho_clip": rho, "c_clip": c}
    settings["optimizer"] = _optimizer(old, old["optimizer_options"])
    return {"algorithm": "learn", "settings": {"type": "volvox:A3C", **settings}}


def _optimizer(settings: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    return {"function": f"optax:{settings['optimizer']}", **options}


def _number(value: Any) -> Any:
    """A schedule that was constant is a number now."""
    return value[1] if isinstance(value, list) and value[:1] == ["constant"] else value


def _noise(old: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: _noise(value) if isinstance(value, dict) else value for name, value in old.items()}
    return {"type": _NOISES.get(str(values.pop("kind")), ""), **values}


def _network(old: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: _network(value) if isinstance(value, dict) else value for name, value in old.items()}
    return {"type": f"volvox.networks:{values.pop('network')}", **values}


def _env(old: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in old["settings"].items() if name != "task"}
    # envpool's own name of the game is among an Atari game's settings.
    name = old["task"].partition("-")[0] if "task" in old["settings"] else None
    call = {"call": "volvox.envs:envpool", "task": old["task"], "name": name, **settings}
    return {**old, "made_by": {**call, "num_envs": old["num_envs"], "groups": old["groups"]}}
