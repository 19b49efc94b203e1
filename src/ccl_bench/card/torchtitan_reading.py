"""Reading a torchtitan TOML file: everything that can be understood, and every mistake at once."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

from ccl_bench.card.issues import IssueLog, Reading
from ccl_bench.card.matching import near_miss_warner
from ccl_bench.card.nodes import mapping_of
from ccl_bench.card.text_files import text_of
from ccl_bench.card.torchtitan import TrainConfig
from ccl_bench.card.walking import read_part
from ccl_bench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.card.text_files import Location

_SECTIONS = frozenset({"job", "model", "parallelism", "training", "profiling"})


def read_train_config(path: Location) -> Reading[TrainConfig]:
    """Return the settings in a TOML file; InputError only where it is not TOML."""
    return train_config_in_text(text_of(path), file=str(path))


def train_config_in_text(text: str, *, file: str = "") -> Reading[TrainConfig]:
    """Return the settings in TOML text; `file` names it in messages."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"is not valid TOML: {error}", where=file, fix="correct the line") from error
    log = IssueLog(file, lines=_lines(text))
    config = read_part(mapping_of(data), TrainConfig, log, unknown=near_miss_warner(TrainConfig, log))
    _check(config, log)
    return Reading(config, log.in_order(), file)


def is_train_config(mapping: Mapping[str, object]) -> bool:
    """Whether data read from a TOML file has the sections of a torchtitan configuration."""
    return len(_SECTIONS & mapping.keys()) >= 2 and "training" in mapping


def is_train_config_file(path: Location) -> bool:
    """Whether a file is TOML with a torchtitan configuration; never raises for what the file holds."""
    try:
        return is_train_config(tomllib.loads(text_of(path)))
    except (InputError, tomllib.TOMLDecodeError, RecursionError, ValueError):
        return False


def _check(config: TrainConfig, log: IssueLog) -> None:
    training, plan = config.training, config.parallelism
    if (
        plan.pp
        and plan.pp > 1
        and training.local_batch_size
        and plan.microbatch_size
        and config.microbatches is None
    ):
        log.warning(
            "parallelism.pipeline_parallel_microbatch_size",
            f"{plan.microbatch_size} does not divide local_batch_size = {training.local_batch_size}",
            "correct one of them",
        )
    degrees = (training.local_batch_size or 1) * (plan.dp_replicate or 1) * max(plan.dp_shard or 1, 1)
    if training.global_batch_size not in (None, -1) and (training.global_batch_size or 0) % degrees:
        log.warning(
            "training.global_batch_size",
            f"{training.global_batch_size} is no multiple of local batch and degrees = {degrees}",
            "correct one of them",
        )


def _lines(text: str) -> dict[str, int]:
    """Return dotted key → line, as far as one key stands on one line."""
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[([\w.\-]+)\]", line):
            section = f"{header[1]}."
            found.setdefault(header[1], number)
        elif key := re.match(r"\s*([\w.\-]+)\s*=", line):
            found.setdefault(f"{section}{key[1]}", number)
    return found
