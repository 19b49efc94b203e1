"""What belongs to something else: events twice, values in each other's place, parts of another trace."""

from __future__ import annotations

import copy
import json
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from meaning_events import (
    call_operators,
    calls,
    copied,
    device,
    end,
    events,
    found,
    kernels,
    number,
    share,
    steps,
    stream,
    transfers,
    window,
)
from meaning_kinds import Kind, of_all, of_one, on_one, several
from meaning_runs import RUNS, InapplicableError, Traces, origin

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from meaning_events import Event
    from meaning_kinds import OfTrace
    from meaning_runs import Document


def _add(document: Document, added: Iterable[Event]) -> None:
    document["traceEvents"] = [*document["traceEvents"], *added]


def _kernels_twice(document: Document, chance: random.Random) -> None:
    _add(document, map(copied, share(kernels(document), chance)))


def _all_twice(document: Document, _: random.Random) -> None:
    _add(document, [copied(event) for event in document["traceEvents"]])


def _under_other_pid(chosen: Iterable[Event], by: int) -> list[Event]:
    return [copied(e) | ({"pid": e["pid"] + by} if isinstance(e.get("pid"), int) else {}) for e in chosen]


def _all_twice_under_other_pid(document: Document, _: random.Random) -> None:
    _add(document, _under_other_pid(document["traceEvents"], 100))


def _other_pid(document: Document, _: random.Random) -> None:
    document["traceEvents"] = _under_other_pid(document["traceEvents"], 100)


def _step_twice(document: Document, chance: random.Random) -> None:
    mark = chance.choice(steps(document))
    _add(document, [copied(e) for e in events(document) if mark["ts"] <= e["ts"] < end(mark)])


def _step_again_later(document: Document, chance: random.Random) -> None:
    mark = chance.choice(steps(document))
    later = window(document)[1] - mark["ts"]
    again = [copied(e) for e in events(document) if mark["ts"] <= e["ts"] < end(mark)]
    _add(document, [event | {"ts": event["ts"] + later} for event in again])


def _two_ranks(run: Traces, chance: random.Random) -> tuple[str, str]:
    one, other = chance.sample(several(run), 2)
    return one, other


def _rank_as_other_file(run: Traces, chance: random.Random) -> None:
    name = chance.choice(several(run))
    run.put(f"more_{name}", run.document(name))


def _rank_in_place_of_another(run: Traces, chance: random.Random) -> None:
    one, other = _two_ranks(run, chance)
    run.put(other, copy.deepcopy(run.document(one)))


def _rank_as_another(run: Traces, chance: random.Random) -> None:
    """Let a trace be that of another rank by all that it states: its header, its process, its name."""
    one, other = _two_ranks(run, chance)
    document = copy.deepcopy(run.document(one))
    document["traceEvents"] = _under_other_pid(document["traceEvents"], 100)
    document["distributedInfo"] = run.document(other)["distributedInfo"]
    run.put(other, document)


def _names_swapped(run: Traces, chance: random.Random) -> None:
    one, other = _two_ranks(run, chance)
    documents = run.document(one), run.document(other)
    run.put(other, documents[0])
    run.put(one, documents[1])


def _headers_swapped(run: Traces, chance: random.Random) -> None:
    one, other = (run.document(name) for name in _two_ranks(run, chance))
    one["distributedInfo"], other["distributedInfo"] = other["distributedInfo"], one["distributedInfo"]


def _pair(chosen: list[Event], chance: random.Random, key: Callable[[Event], Any]) -> tuple[Event, Event]:
    """Return two events that differ in something."""
    one = chance.choice(chosen)
    others = [event for event in chosen if key(event) != key(one)]
    if not others:
        raise InapplicableError
    return one, chance.choice(others)


def _lengths_swapped(*, fitting: bool) -> OfTrace:
    """Return a change of two lengths on a stream, after which both fit before what follows, or not."""

    def change(document: Document, chance: random.Random) -> None:
        work = kernels(document)
        chosen = chance.choice(sorted({stream(kernel) for kernel in work}))
        line = [kernel for kernel in work if stream(kernel) == chosen]
        room = {id(a): b["ts"] - a["ts"] for a, b in pairwise(line)}
        pairs = [
            (one, other)
            for one, other in combinations(chance.sample(line[:-1], min(len(line) - 1, 60)), 2)
            if one["dur"] < other["dur"] and (other["dur"] <= room[id(one)]) is fitting
        ]
        if not pairs:
            raise InapplicableError
        one, other = chance.choice(pairs)
        one["dur"], other["dur"] = other["dur"], one["dur"]

    return change


def _streams_swapped(document: Document, chance: random.Random) -> None:
    one, other = _pair(kernels(document), chance, stream)
    for key in ("tid", "args"):
        one[key], other[key] = other[key], one[key]


def _whole_streams_swapped(document: Document, chance: random.Random) -> None:
    chosen = [stream(event) for event in _pair(kernels(document), chance, stream)]
    places = dict(zip(chosen, reversed(chosen), strict=True))
    for event in device(document):
        if stream(event) in places:
            event["args"]["stream"] = event["tid"] = places[stream(event)]


def _kernels_swapped(document: Document, chance: random.Random) -> None:
    """Let two kernels change their names and all that does not link them to a launch or a stream."""
    one, other = _pair(kernels(document), chance, lambda event: event["name"])
    links = {"correlation", "External id", "stream"}
    kept = [{key: value for key, value in event["args"].items() if key in links} for event in (one, other)]
    one["name"], other["name"] = other["name"], one["name"]
    one["args"], other["args"] = other["args"] | kept[0], one["args"] | kept[1]


def _numbers_swapped(document: Document, chance: random.Random) -> None:
    struck = share([kernel for kernel in kernels(document) if number(kernel)], chance)
    shuffled = [number(kernel) for kernel in struck]
    for kernel, value in zip(struck, [*shuffled[1:], shuffled[0]], strict=True):
        kernel["args"]["correlation"] = value


_OTHER_NAMES = {"allreduce": "_allgather_base", "_allgather_base": "allreduce", "AllReduce": "AllGather"}
_OTHER_NAMES |= {"AllGather": "AllReduce", "all_reduce": "all_gather", "all_gather": "all_reduce"}


def _collective_named_otherwise(event: Event) -> None:
    arguments = event.get("args") or {}
    if "Collective name" in arguments:
        held = arguments["Collective name"]
        arguments["Collective name"] = _OTHER_NAMES.get(held, "allreduce")
    for name, other in _OTHER_NAMES.items():
        if name in event["name"]:
            event["name"] = event["name"].replace(name, other)
            return


def _one_collective_named_otherwise(document: Document, chance: random.Random) -> None:
    _collective_named_otherwise(chance.choice(transfers(document)))


def _collectives_named_otherwise(document: Document, _: random.Random) -> None:
    for event in _distinct((*transfers(document), *_or_none(calls, document))):
        _collective_named_otherwise(event)


def _distinct(chosen: Iterable[Event]) -> list[Event]:
    return [*{id(event): event for event in chosen}.values()]


def _or_none(chosen: Callable[[Document], list[Event]], document: Document) -> list[Event]:
    try:
        return chosen(document)
    except InapplicableError:
        return []


def _operator_renamed(document: Document, chance: random.Random) -> None:
    operators = [event for event in events(document) if event.get("cat") == "cpu_op"]
    chance.choice(operators)["name"] = "aten::something_else"


def _groups_swapped(document: Document, chance: random.Random) -> None:
    stated = [event for event in calls(document) if "Process Group Name" in event["args"]]
    one, other = _pair(stated, chance, lambda event: event["args"]["Process Group Name"])
    keys = ("Process Group Name", "Process Group Description", "Process Group Ranks", "Group size")
    values = [{key: event["args"].get(key) for key in keys} for event in (one, other)]
    places = {values[0][keys[0]]: values[1], values[1][keys[0]]: values[0]}
    for event in stated:
        event["args"] |= places.get(event["args"]["Process Group Name"], {})


SIZES = ("In msg nelems", "Out msg nelems")


def _scale_sizes(arguments: dict[str, Any], factor: float) -> None:
    stated = [key for key in SIZES if key in arguments]
    for key in stated:
        arguments[key] = int(arguments[key] * factor)
    if not stated and arguments.get("Input Dims"):
        arguments["Input Dims"] = _scaled(arguments["Input Dims"], factor)


def _scaled(dimensions: Any, factor: float) -> Any:
    """Return the dimensions of tensors with the first of each scaled."""
    if isinstance(dimensions, list) and dimensions and not isinstance(dimensions[0], list):
        return [int(dimensions[0] * factor), *dimensions[1:]]
    return [_scaled(inner, factor) for inner in dimensions] if isinstance(dimensions, list) else dimensions


def _sized(document: Document) -> list[Event]:
    """Return what holds the dimensions of collectives, on the host."""
    ranges = [event for event in events(document) if event["name"].startswith(("nccl:", "gloo:"))]
    known = _distinct((*_or_none(call_operators, document), *ranges))
    return found(event for event in known if (event.get("args") or {}).get("Input Dims"))


def _sizes(factor: float, *, of_one: bool = False) -> OfTrace:
    """Return a change of numbers of elements, or of first dimensions where these are all that is stated."""

    def change(document: Document, chance: random.Random) -> None:
        counted = [event for event in _or_none(calls, document) if {*SIZES} & {*event["args"]}]
        sized = counted or _sized(document)
        for event in [chance.choice(sized)] if of_one else sized:
            _scale_sizes(event["args"], factor)

    return change


def _argument(key: str, value: Callable[[Any], Any]) -> OfTrace:
    def change(document: Document, _: random.Random) -> None:
        for event in calls(document):
            if key in event["args"]:
                event["args"][key] = value(event["args"][key])

    return change


def _header(key: str, value: Callable[[int], int]) -> OfTrace:
    def change(document: Document, _: random.Random) -> None:
        if key not in document.get("distributedInfo", ()):
            raise InapplicableError
        document["distributedInfo"][key] = value(document["distributedInfo"][key])

    return change


def _ranks_beyond(text: str) -> str:
    return json.dumps([rank + 100 for rank in json.loads(text)])


def _streams_negative(document: Document, chance: random.Random) -> None:
    for kernel in share(kernels(document), chance):
        kernel["args"]["stream"] = kernel["tid"] = -7


def _bytes_of_copies(document: Document, _: random.Random) -> None:
    sized = [event for event in device(document) if (event.get("args") or {}).get("bytes")]
    if not sized:
        raise InapplicableError
    for event in sized:
        event["args"]["bytes"] *= 1000


def _of_another_run(run: Traces, chance: random.Random) -> None:
    """Put a trace of another run in the place of one, under its name."""
    own = origin_name(run)
    others = [name for name in RUNS if name not in {own, "nsys"}]
    source = Traces(origin(chance.choice(others)), run.folder.with_name("other"))
    run.put(chance.choice(several(run)), source.document(chance.choice(source.names)))


def origin_name(run: Traces) -> str:
    """Return the name of the run that was copied."""
    return run.folder.name


def _of_another_window(document: Document, _: random.Random) -> None:
    """Let a trace be of steps recorded a minute later."""
    for event in document["traceEvents"]:
        if "ts" in event:
            event["ts"] += 6e7
        if event.get("name", "").startswith("ProfilerStep#"):
            event["name"] = f"ProfilerStep#{int(event['name'].partition('#')[2]) + 1000}"


def _half_of_another(run: Traces, chance: random.Random) -> None:
    one, other = (run.document(name) for name in _two_ranks(run, chance))
    first, last = window(one)
    border = (first + last) / 2
    drop_after = [e for e in one["traceEvents"] if e.get("ph") != "X" or e["ts"] < border]
    start = window(other)[0]
    added = [copied(e) for e in events(other) if e["ts"] - start >= border - first]
    one["traceEvents"] = [*drop_after, *added]


SWAPPED = {
    "lengths of two kernels that fit": _lengths_swapped(fitting=True),
    "lengths of two kernels that overlap": _lengths_swapped(fitting=False),
    "two kernels": _kernels_swapped,
    "streams of two kernels": _streams_swapped,
    "two whole streams": _whole_streams_swapped,
    "correlations of kernels": _numbers_swapped,
    "name of one collective": _one_collective_named_otherwise,
    "names of collectives": _collectives_named_otherwise,
    "name of an operator": _operator_renamed,
    "groups of collectives": _groups_swapped,
}

WRONG = {
    "size of one collective x 1000": _sizes(1000, of_one=True),
    "sizes of collectives x 1000": _sizes(1000),
    "sizes in bytes": _sizes(4),
    "sizes negative": _sizes(-1),
    "dtype": _argument("dtype", lambda held: "Half" if held == "Float" else "Float"),
    "group of other ranks": _argument("Process Group Ranks", _ranks_beyond),
    "group size": _argument("Group size", lambda size: size * 2),
    "rank of the trace": _header("rank", lambda rank: rank + 90),
    "number of ranks": _header("world_size", lambda size: size * 2),
    "streams negative": _streams_negative,
    "bytes of copies x 1000": _bytes_of_copies,
}

KINDS = [
    *of_one(
        "doubled",
        {
            "kernels": _kernels_twice,
            "all events": _all_twice,
            "all events under another pid": _all_twice_under_other_pid,
            "a step": _step_twice,
            "a step at the end": _step_again_later,
        },
    ),
    Kind("doubled", "rewritten with another pid", on_one(_other_pid), is_neutral=True),
    Kind("doubled", "a rank under another file name", _rank_as_other_file),
    Kind("doubled", "a rank in the file of another", _rank_in_place_of_another),
    Kind("doubled", "a rank as another one", _rank_as_another),
    Kind("swapped", "files of two ranks", _names_swapped),
    Kind("swapped", "headers of two ranks", _headers_swapped),
    *of_one("swapped", SWAPPED),
    *of_all("swapped", {"names of collectives": SWAPPED["names of collectives"]}),
    Kind("mixed", "a rank of another run", _of_another_run),
    Kind("mixed", "a rank of another window", on_one(_of_another_window)),
    Kind("mixed", "half of a rank from another", _half_of_another),
    *of_one("wrong field", WRONG),
    *of_all(
        "wrong field",
        {
            name: WRONG[name]
            for name in ("sizes of collectives x 1000", "sizes in bytes", "sizes negative", "dtype")
        },
    ),
]
