"""Damage to what stands in traces and results: events, nodes and requests, and the head of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import json_damage
from judging import FACT, MUST_SHOW, NEUTRAL

if TYPE_CHECKING:
    import random

TIMES = ("ts", "dur")
ROLE = ("ph", "cat", "name")
DEVICE_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}

CALL_ARGUMENTS = (
    "Collective name",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "dtype",
    "Process Group Name",
    "Process Group Ranks",
)


def _events(document: Any) -> list[dict[str, Any]]:
    return [
        event for event in document["traceEvents"] if event.get("ph") == "X" and event.get("cat") != "Trace"
    ]


def _work(document: Any) -> list[dict[str, Any]]:
    """Return the kernels and copies; operators where there is no device."""
    found = [event for event in _events(document) if event.get("cat") in DEVICE_WORK]
    return found or [event for event in _events(document) if event.get("cat") == "cpu_op"]


def _calls(document: Any) -> list[dict[str, Any]]:
    """Return the arguments of communication calls; of everything where there are none."""
    held = [event["args"] for event in _events(document) if event.get("args")]
    return [arguments for arguments in held if "Collective name" in arguments] or held


def _head(document: Any) -> list[dict[str, Any]]:
    """Return what stands in a trace beside its events."""
    beside = {key: value for key, value in document.items() if key != "traceEvents"}
    return [document, *json_damage.objects(beside)]


def _work_repeated(document: Any, chance: random.Random) -> None:
    work = _work(document)
    struck = chance.sample(work, min(len(work), chance.choice((1, 3, len(work)))))
    document["traceEvents"] += [dict(event) for event in struck]


def _key_of_head_lost(document: Any, chance: random.Random) -> None:
    chance.choice(_head(document)).pop(chance.choice([*document]), None)


def _all_of_head_lost(document: Any, _: random.Random) -> None:
    for key in [key for key in document if key != "traceEvents"]:
        del document[key]


_NUMBERS = ("correlation", "External id", "Record function id", "Seq", "Sequence number", "Ev Idx")


def _numbered_anew(event: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an event with other numbers, as a second writer gives them."""
    copy = event | {"args": dict(event.get("args") or {})}
    for key in _NUMBERS:
        if isinstance(copy["args"].get(key), int):
            copy["args"][key] += 10**7
    return copy


def _all_twice_under_other_numbers(document: Any, _: random.Random) -> None:
    document["traceEvents"] += [_numbered_anew(event) for event in _events(document)]


def _numbers_of_calls(change: Any) -> Any:
    """Return a change to the numbers by which kernels find their launches, and calls their partners."""

    def apply(document: Any, _: random.Random) -> None:
        for event in _events(document):
            for key in ("correlation", "Seq"):
                if isinstance((event.get("args") or {}).get(key), int):
                    event["args"][key] = change(event["args"][key])

    return apply


def _clock_stopped(document: Any, _: random.Random) -> None:
    for event in _events(document):
        event["ts"] = 1000.0


def _length_of_work(value: Any) -> Any:
    def apply(document: Any, chance: random.Random) -> None:
        work = _work(document)
        for event in chance.sample(work, min(len(work), chance.choice((1, 3, len(work))))):
            event["dur"] = value

    return apply


KINETO: dict[str, Any] = {
    "length of work true": (MUST_SHOW, _length_of_work(True)),
    "length of work denormal": (MUST_SHOW, _length_of_work(5e-324)),
    "length of work no number": (MUST_SHOW, _length_of_work("x")),
    "clock stopped": (MUST_SHOW, _clock_stopped),
    "numbers of calls negative": (MUST_SHOW, _numbers_of_calls(lambda number: -1 - number)),
    "numbers of calls beyond 64 bits": (MUST_SHOW, _numbers_of_calls(lambda number: number + 2**63)),
    "numbers of calls as text": (NEUTRAL, _numbers_of_calls(str)),
    "events twice under other numbers": (MUST_SHOW, _all_twice_under_other_numbers),
    "time of work lost": (MUST_SHOW, lambda d, c: json_damage.key_lost(_work(d), c, TIMES)),
    "time of any event lost": (MUST_SHOW, lambda d, c: json_damage.key_lost(_events(d), c, TIMES)),
    "odd time of work": (FACT, lambda d, c: json_damage.value_odd(_work(d), c, TIMES)),
    "kind or name of work lost": (MUST_SHOW, lambda d, c: json_damage.key_lost(_work(d), c, ROLE)),
    "odd kind or name": (FACT, lambda d, c: json_damage.value_odd(_events(d), c, ROLE)),
    "argument of a call lost": (FACT, lambda d, c: json_damage.key_lost(_calls(d), c, CALL_ARGUMENTS)),
    "odd argument of a call": (FACT, lambda d, c: json_damage.value_odd(_calls(d), c)),
    "work written twice": (MUST_SHOW, _work_repeated),
    "events written twice": (FACT, lambda d, c: json_damage.repeated(d["traceEvents"], c)),
    "odd head": (FACT, lambda d, c: json_damage.value_odd(_head(d), c)),
    "key of head lost": (FACT, _key_of_head_lost),
    "head lost": (FACT, _all_of_head_lost),
    "events in another order": (NEUTRAL, lambda d, c: json_damage.shuffled(d["traceEvents"], c)),
    "keys in another order": (NEUTRAL, lambda d, c: json_damage.keys_shuffled(d["traceEvents"], c)),
}


def _nodes(document: Any) -> list[dict[str, Any]]:
    return [node for node in document["nodes"] if isinstance(node, dict)]


def _attributes(document: Any) -> list[dict[str, Any]]:
    return [found for node in _nodes(document) for found in node.get("attrs", []) if found] or _nodes(
        document
    )


EXECUTION_TRACE: dict[str, Any] = {
    "key of a node lost": (FACT, lambda d, c: json_damage.key_lost(_nodes(d), c)),
    "odd value in a node": (FACT, lambda d, c: json_damage.value_odd(_nodes(d), c)),
    "odd attribute": (FACT, lambda d, c: json_damage.value_odd(_attributes(d), c)),
    "nodes written twice": (FACT, lambda d, c: json_damage.repeated(d["nodes"], c)),
    "keys of nodes in another order": (NEUTRAL, lambda d, c: json_damage.keys_shuffled(_nodes(d), c)),
}


def _lists(document: Any) -> list[list[Any]]:
    values = document.values() if isinstance(document, dict) else [document]
    return [value for value in values if isinstance(value, list) and value] or [[]]


def _of_requests(change: Any) -> Any:
    """Return a change to one of the lists that hold a value for each request."""

    def apply(document: Any, chance: random.Random) -> None:
        change(chance.choice(_lists(document)), chance)

    return apply


def _entry_odd(items: list[Any], chance: random.Random) -> None:
    if items:
        items[chance.randrange(len(items))] = chance.choice(json_damage.ODD)


def _entry_lost(items: list[Any], chance: random.Random) -> None:
    if items:
        del items[chance.randrange(len(items))]


SERVING: dict[str, Any] = {
    "odd value in a list": (FACT, _of_requests(_entry_odd)),
    "entry of a list lost": (FACT, _of_requests(_entry_lost)),
    "entries written twice": (FACT, _of_requests(json_damage.repeated)),
}
