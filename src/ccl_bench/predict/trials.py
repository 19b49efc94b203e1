"""Tables of trials: configurations of a training with the step time that each measured, or how it failed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError, NoValue, UsageError
from ccl_bench.base.lazy_imports import np, pl
from ccl_bench.base.registry import did_you_mean
from ccl_bench.base.text import csv_lines
from ccl_bench.catalog import devices, load_data, models
from ccl_bench.predict.step_model import model_data
from ccl_bench.storage.files import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccl_bench.predict.step_model import Columns

NUMBERS = {
    "gpus": "devices of the job",
    "gpus_per_node": "devices of a node",
    "seq_len": "tokens of a sequence",
    "global_batch": "sequences of a step",
    "micro_batch": "sequences of a microbatch",
    "tp": "tensor-parallel degree",
    "dp": "data-parallel degree",
    "pp": "pipeline stages",
    "ep": "expert-parallel degree, within dp",
    "cp": "context-parallel degree",
    "layers": "transformer layers",
    "hidden": "width of the residual stream",
    "heads": "query heads",
    "vocabulary": "tokens of the vocabulary",
    "layer_parameters": "weights of a layer that a token meets",
    "step_s": "seconds of a step",
}
"""Columns of numbers above zero, and their meaning."""

FLAGS = {"recompute": "whether activations are computed again"}
ACCUMULATES = "accumulates"
"""Optional column: whether micro batches without a pipeline accumulate; as its framework does by default."""
TEXTS = {
    "study": "name of the rows that belong together",
    "framework": "program that trained",
    "model": "name of the model",
    "gpu": "name of the device",
    "compile": "compiler, such as inductor; eager without",
    "status": "measured, failed, or oom for a failure of memory",
}
"""Columns of text, and their meaning."""

_HEADINGS = {
    "#gpus": "gpus",
    "hiddensize": "hidden",
    "attentionheads": "heads",
    "#layers": "layers",
    "sequencelength": "seq_len",
    "tensorparallelism": "tp",
    "dataparallelism": "dp",
    "pipelineparallelism": "pp",
}
"""Headings of published tables, in small letters without spaces."""

_SECONDS = {"iterationtime(ms)": 1e-3, "step_ms": 1e-3, "iterationtime(s)": 1.0}
"""Headings of step times, and how many seconds one of their unit is."""

DEGREES = ("tp", "dp", "pp", "cp")
CONFIGURATION = (
    *("gpus", *DEGREES, "ep"),
    *("micro_batch", "global_batch", "seq_len", "recompute", "compile"),
)
"""What distinguishes one configuration of a study from another."""

_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_NAMED = 5
"""Rows with mistakes that a remark names."""
_SHAPE = ("layers", "hidden", "layer_parameters")
_GPUS_PER_NODE = 8
"""Devices of a node where a table does not state them: those of most systems with NVSwitch."""
_VOCABULARY = 51_200
"""Vocabulary of a model that states none: GPT-2's, padded as Megatron-LM pads it."""


@dataclass(frozen=True)
class Trials:
    """Rows with all columns of `NUMBERS`, `FLAGS` and `TEXTS`, null where unknown, and those of the file."""

    rows: pl.DataFrame
    source: str
    """File or set that they are from."""
    remarks: tuple[str, ...] = ()
    """What was assumed for all rows."""

    @property
    def measured(self) -> pl.DataFrame:
        """Rows with a step time."""
        return self.rows.filter(pl.col("step_s").is_not_null())

    @property
    def failed(self) -> pl.DataFrame:
        """Rows without one."""
        return self.rows.filter(pl.col("step_s").is_null())

    @property
    def studies(self) -> list[str]:
        """Names of the studies, in the order of the rows; none if the table states none."""
        names: list[str] = self.rows["study"].drop_nulls().unique(maintain_order=True).to_list()
        return names

    def of_study(self, name: str | None) -> Trials:
        """Return the rows of one study; without a name, all, if they are of one or of none."""
        if name is None:
            if len(self.studies) > 1:
                raise UsageError(
                    f"{self.source} has {len(self.studies)} studies, whose steps are not comparable",
                    fix=f"choose one with --study: {', '.join(self.studies)}",
                )
            return self
        if name not in self.studies:
            hint = did_you_mean(name, self.studies)
            raise UsageError(
                f"no study {name!r} in {self.source}",
                fix=f"{hint or ''} Studies: {', '.join(self.studies)}".strip(),
            )
        return Trials(self.rows.filter(pl.col("study") == name), self.source, self.remarks)

    def of_devices(self, count: float) -> Trials:
        """Return the only study that has trials on so many devices; without one, as `of_study` does."""
        fitting = [
            name
            for name in self.studies
            if count in self.rows.filter(pl.col("study") == name)["gpus"].to_list()
        ]
        if len(self.studies) < 2 or len(fitting) != 1:
            return self.of_study(None)
        remark = f"study {fitting[0]}: the only one with trials on {count:g} devices"
        return replace(self.of_study(fitting[0]), remarks=(*self.remarks, remark))


_MOST_BYTES = 64 * MIB
"""Largest table: a million trials of forty columns are as much."""


def set_names() -> list[str]:
    """Return the names of the sets of the catalog."""
    return [each["name"] for each in load_data("trials")["set"]]


def read_trials(place: str | Path) -> Trials:
    """Return the trials of a file (CSV, Parquet, JSON) or of a set of the catalog, by its name.

    InputError names the file, the row and the column of a mistake.
    """
    sets = set_names()
    if place in sets:
        packed = pl.read_parquet((files("ccl_bench.catalog") / "trials.parquet").read_bytes())
        return complete_trials(packed.filter(pl.col("set") == place).drop("set"), str(place))
    path = Path(place)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(
                f"the table has more than {_MOST_BYTES // MIB} MiB", where=str(path), fix="give fewer trials"
            )
        content = path.read_bytes()  # polars takes a name with * for many files
        if path.suffix == ".parquet":
            frame = pl.read_parquet(content)
        elif path.suffix in {".json", ".jsonl"}:
            frame = pl.read_ndjson(content) if path.suffix == ".jsonl" else pl.read_json(content)
        else:
            frame = pl.read_csv(content, infer_schema=False)
    except OSError as error:
        hint = did_you_mean(str(place), sets)
        raise InputError(
            f"the table cannot be read: {error.strerror or error}",
            where=str(path),
            fix=f"{hint or ''} Name a file, or a set of the catalog: {', '.join(sets)}".strip(),
        ) from None
    except (pl.exceptions.PolarsError, ValueError) as error:
        raise InputError(
            f"this is no table: {str(error).splitlines()[0]}",
            where=str(path),
            fix="give a CSV file with a row of headings",
        ) from None
    return complete_trials(frame, str(path))


def table_text(rows: pl.DataFrame) -> str:
    """Return rows as CSV that `read_trials` reads and that does nothing in a spreadsheet."""
    return "".join(csv_lines([rows.columns, *rows.rows()]))


def complete_trials(frame: pl.DataFrame, source: str) -> Trials:
    """Return a table with the columns of trials: headings renamed, values checked, the rest unknown.

    Rows with mistakes are left out, with a remark that names them. InputError names the first mistake if no
    row is left.
    """
    frame = frame.rename({name: name.replace("\ufeff", "").strip() for name in frame.columns})
    if not frame.height:
        raise InputError("the table has no rows", where=source)
    units = {"step_s": 1.0}
    for name in frame.columns:
        short = re.sub(r"\s", "", name.lower())
        target = _HEADINGS.get(short, re.sub(r"\s+", "_", name.lower().strip()))
        if short in _SECONDS:
            target, unit = "step_s", _SECONDS[short]
            units = units if "step_s" in frame.columns else {"step_s": unit}
        if target not in frame.columns and target in {*NUMBERS, *FLAGS, *TEXTS}:
            frame = frame.rename({name: target})
    mistakes = _Mistakes(source)
    frame = frame.with_columns(
        pl.col(name).cast(pl.String).str.strip_chars().replace("", None)
        if name in frame.columns
        else pl.lit(None, pl.String).alias(name)
        for name in (*TEXTS, *NUMBERS)
    )
    # What stands in place of a step time says how the trial failed.
    step = frame["step_s"].cast(pl.Float64, strict=False)
    timed = ((step > 0) & step.is_finite()).fill_null(value=False)
    frame = frame.with_columns(
        step_s=pl.when(timed).then(step.cast(pl.String)),
        status=pl.when(timed | pl.col("status").is_not_null())
        .then(pl.col("status"))
        .otherwise(pl.col("step_s"))
        .str.to_lowercase(),
    )
    for name in NUMBERS:
        numbers = frame[name].cast(pl.Float64, strict=False)
        right = ((numbers > 0) & numbers.is_finite()).fill_null(value=False)
        mistakes.add(
            frame[name].is_not_null() & ~right,
            [f"column {name}: {text!r} is no number above zero" for text in frame[name]],
        )
        frame = frame.with_columns((numbers.set(~right, None) * units.get(name, 1.0)).alias(name))
    flags = (*FLAGS, ACCUMULATES)
    frame = frame.with_columns(
        pl.col(name).cast(pl.String).str.strip_chars().str.to_lowercase().replace_strict(_TRUTH, default=None)
        if name in frame.columns
        else pl.lit(None, pl.Boolean).alias(name)
        for name in flags
    ).with_columns(pl.col(*FLAGS).fill_null(value=False))
    for name in ("global_batch", "micro_batch", "seq_len"):
        mistakes.add(frame[name].is_null(), [f"no {name} ({NUMBERS[name]})"] * frame.height)
    frame = frame.with_columns(pl.col(*DEGREES, "ep").fill_null(1))
    product = pl.col("tp") * pl.col("dp") * pl.col("pp") * pl.col("cp")
    frame = frame.with_columns(pl.col("gpus").fill_null(product))
    mistakes.add(
        frame["gpus"] != frame.select(product).to_series(),
        [
            f"{row['gpus']:g} devices, but tp · dp · pp · cp is "
            f"{' · '.join(format(row[name], 'g') for name in DEGREES)}"
            for row in frame.iter_rows(named=True)
        ],
    )
    mistakes.add(
        frame["global_batch"] % (frame["dp"] * frame["micro_batch"]) != 0,
        [
            f"a global batch of {row['global_batch']}, no multiple of dp · micro batch "
            f"({row['dp']} · {row['micro_batch']})"
            for row in frame.iter_rows(named=True)
        ],
    )
    frame = _with_shapes(frame)
    mistakes.add(
        frame.select(pl.any_horizontal(pl.col(*_SHAPE).is_null())).to_series(),
        [f"the shape of {name or 'the model'} is unknown" for name in frame["model"]],
    )
    remarks = mistakes.remarks()
    frame = frame[[row for row in range(frame.height) if row not in mistakes.by_row]]
    for column, value, words in (
        ("gpus_per_node", _GPUS_PER_NODE, "a node has 8 devices"),
        ("vocabulary", _VOCABULARY, f"the vocabulary has {_VOCABULARY:,} tokens"),
    ):
        if frame[column].null_count():
            remarks.append(f"the table has no {column}: {words}")
            frame = frame.with_columns(pl.col(column).fill_null(value))
    frame = frame.with_columns(pl.col("heads").fill_null((pl.col("hidden") / 128).ceil()))
    if frame["gpu"].null_count():
        remarks.append("the table names no device: constants begin with a wide spread around an A100's")
    return Trials(frame, source, tuple(remarks))


class _Mistakes:
    """The first mistake of each row of a table."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.by_row: dict[int, str] = {}
        self._rows = 0

    def add(self, wrong: pl.Series, messages: list[str]) -> None:
        """Add the messages of rows that are wrong."""
        self._rows = len(messages)
        for row in wrong.fill_null(value=False).arg_true().to_list():
            self.by_row.setdefault(row, messages[row])

    def remarks(self) -> list[str]:
        """Return a remark on rows that are left out, if some are; raise InputError if all are."""
        named = [f"row {row + 1}: {self.by_row[row]}" for row in sorted(self.by_row)]
        if len(named) == self._rows:
            columns = ", ".join([*TEXTS, *NUMBERS, *FLAGS])
            raise InputError(
                named[0], where=self._source, fix=f"correct it; a table of trials has the columns {columns}"
            )
        if not named:
            return []
        rest = f"; {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        return [f"left out: {'; '.join(named[:_NAMED])}{rest}"]


def _with_shapes(frame: pl.DataFrame) -> pl.DataFrame:
    """Fill the shape of models from the catalog, and weights of a layer from its width."""
    for name in frame["model"].drop_nulls().unique().to_list():
        try:
            shape = models.model(name)
        except NoValue:
            continue
        multiplied = shape.active_parameters - shape.lookup_parameters
        per_layer = (multiplied - shape.vocabulary * shape.hidden) / shape.layers
        values = {
            "layers": shape.layers,
            "hidden": shape.hidden,
            "heads": shape.heads,
            "vocabulary": shape.vocabulary,
            "layer_parameters": per_layer,
        }
        frame = frame.with_columns(
            pl.when(pl.col("model") == name).then(pl.col(column).fill_null(value)).otherwise(pl.col(column))
            for column, value in values.items()
        )
    # A dense layer has 4 h^2 weights in attention and 8 h^2 in the MLP.
    return frame.with_columns(pl.col("layer_parameters").fill_null(12 * pl.col("hidden") ** 2))


def columns(rows: pl.DataFrame) -> Columns:
    """Return the rows as the model takes them: arrays of numbers, with the figures of each device."""
    numbers = {name: rows[name].to_numpy().astype(float) for name in NUMBERS if name != "step_s"}
    numbers["recompute"] = rows["recompute"].to_numpy().astype(float)
    # Context parallelism shares sequences as data parallelism shares batches: gradients are reduced over
    # both.
    compiled = (rows["compile"].fill_null("eager") != "eager").to_numpy()
    numbers["compiled"] = compiled.astype(float)
    unknown = model_data()["unknown_device"]
    figures = {name: _figures(name) for name in rows["gpu"].unique().to_list()}
    for figure in ("peak_flops", "memory_bandwidth", "link_per_direction"):
        numbers[figure] = np.array([(figures[name] or unknown)[figure] for name in rows["gpu"]])
    numbers["unknown_device"] = np.array([float(figures[name] is None) for name in rows["gpu"]])
    frameworks = model_data()["frameworks"]
    settings = [frameworks.get((name or "").lower(), frameworks["megatron-lm"]) for name in rows["framework"]]
    numbers["sharded"] = np.array([float(each["sharding"] == "fsdp") for each in settings])
    numbers["accumulates"] = np.array(
        [
            float(each["accumulates_without_pipeline"] if flag is None else flag)
            for each, flag in zip(settings, rows[ACCUMULATES], strict=True)
        ]
    )
    return numbers


def _figures(name: str | None) -> Mapping[str, float] | None:
    """Return the figures of a device that constants are fractions of, or None where one is unknown."""
    if name is None:
        return None
    try:
        device = devices.device(name)
        peak = device.peak_flops("bfloat16")
    except NoValue:
        return None
    link = device.link_bytes_per_s_per_direction
    if device.memory_bandwidth_bytes_per_s is None or link is None:
        return None
    return {
        "peak_flops": peak,
        "memory_bandwidth": device.memory_bandwidth_bytes_per_s,
        "link_per_direction": link,
    }


def configurations(rows: pl.DataFrame) -> list[tuple[object, ...]]:
    """Return what distinguishes each row from those of other configurations."""
    return rows.select(CONFIGURATION).rows()


def shown_configuration(row: dict[str, object]) -> dict[str, object]:
    """Return the settings of a row, with counts as whole numbers; unknown ones are left out."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in ((name, row[name]) for name in CONFIGURATION)
        if value is not None
    }


def devices_of(text: str) -> float:
    """Return the devices of a configuration such as `tp=4,dp=2`: the product of its degrees, 1 if absent."""
    degrees = re.findall(rf"(?:^|,)\s*(?:{'|'.join(DEGREES)})\s*=\s*(\d+)", text)
    return float(math.prod(map(int, degrees)))


def parsed_configuration(text: str, like: pl.DataFrame) -> pl.DataFrame:
    """Return the row of a configuration such as `tp=4,dp=1,pp=4,micro_batch=2`.

    What it leaves out is that of the rows `like`, if they agree; degrees are 1. UsageError names what is
    unknown, missing, or does not divide.
    """
    values: dict[str, object] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, separator, value = (each.strip() for each in part.partition("="))
        if not separator or name not in {*NUMBERS, *FLAGS, *TEXTS} - {"step_s", "status", "gpus"}:
            names = [*(each for each in NUMBERS if each not in {"step_s", "gpus"}), *FLAGS, "compile"]
            raise UsageError(
                f"{part!r} is no setting of a configuration",
                fix=f"{did_you_mean(name, names) or ''} Write name=value, separated by commas: "
                f"{', '.join(names)}".strip(),
            )
        values[name] = value
    for name in DEGREES:
        values.setdefault(name, "1")
    agreed: Iterable[str] = (
        *(
            "gpus_per_node",
            "seq_len",
            "global_batch",
            "micro_batch",
            "layers",
            "hidden",
            "heads",
            "vocabulary",
        ),
        *("layer_parameters", "framework", "model", "gpu", "study", "compile", "recompute"),
    )
    for name in agreed:
        seen = like[name].drop_nulls().unique().to_list()
        if name not in values and len(seen) == 1:
            values[name] = seen[0]
        elif name not in values and name in {"seq_len", "global_batch", "micro_batch"}:
            raise UsageError(
                f"the configuration states no {name}, of which the table has several",
                fix=f"add {name}=…; the table has {', '.join(format(each, 'g') for each in sorted(seen))}",
            )
    try:
        return complete_trials(
            pl.DataFrame({name: [str(value)] for name, value in values.items()}), "configuration"
        ).rows
    except InputError as error:
        raise UsageError(
            f"configuration {text}: {error.message.removeprefix('row 1: ')}", fix=error.fix
        ) from None
