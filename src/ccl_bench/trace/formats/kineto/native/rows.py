"""Feed the native reader, and take the rows it made."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import TYPE_CHECKING, Any

from ccl_bench.base.lazy_polars import pl
from ccl_bench.trace.formats.kineto import tables
from ccl_bench.trace.formats.kineto.decode import decoder_for
from ccl_bench.trace.formats.kineto.native import library
from ccl_bench.trace.formats.kineto.native.library import load_library

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccl_bench.trace.formats.kineto.decode import Decoder
    from ccl_bench.trace.formats.kineto.events import Event

_SCHEMA_BYTES, _ARRAY_BYTES = 72, 80
"""Sizes of `ArrowSchema` and `ArrowArray`, which the C data interface fixes."""

_RELEASE = {_SCHEMA_BYTES: 56, _ARRAY_BYTES: 64}
"""Where the function stands in each that frees it."""

_RENAMED = {
    "pid": "process",
    "tid": "thread",
    "occupancy": "occupancy_pct",
    "grid": "grid_blocks",
    "block": "block_threads",
    "shared_memory": "shared_memory_bytes",
}

_NEW_CAPSULE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class _Handover:
    """An array on its way from C to polars, without a copy."""

    def __init__(self, fill: Callable[[int, int], int]) -> None:
        self._schema = ctypes.create_string_buffer(_SCHEMA_BYTES)
        self._array = ctypes.create_string_buffer(_ARRAY_BYTES)
        if fill(ctypes.addressof(self._schema), ctypes.addressof(self._array)):
            raise MemoryError

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return (
            _NEW_CAPSULE(ctypes.addressof(self._schema), b"arrow_schema", None),
            _NEW_CAPSULE(ctypes.addressof(self._array), b"arrow_array", None),
        )

    def series(self) -> pl.Series:
        """Return the array; what polars did not take over is freed."""
        try:
            return pl.Series(self)
        finally:
            for given in (self._schema, self._array):
                release = ctypes.c_void_p.from_buffer(given, _RELEASE[len(given)]).value
                if release:
                    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(release)(ctypes.addressof(given))


class NativeRows:
    """The rows that the native reader made of one file."""

    def __init__(self, native: ctypes.CDLL, handle: int) -> None:
        self._native = native
        self._handle = handle
        self._has_rows = False
        self._decoder: Decoder | None = None

    def __del__(self) -> None:
        self._native.rows_close(self._handle)

    @property
    def events(self) -> int:
        """How many events were taken."""
        found: int = self._native.rows_events(self._handle)
        return found

    def feed(self, text: bytes, *, must_end: bool) -> int | None:
        """Take the events of `text`, all or none; None if there is anything unusual in it.

        Otherwise returns where the text after the array of events begins.
        """
        end: int = self._native.rows_feed(self._handle, text, len(text), must_end)
        if end < 0:
            return None
        self._has_rows = True
        return end or len(text)

    def calls(self, text: bytes) -> list[Event]:
        """Return the events of `text` that describe communication calls; `text` is what was fed last."""
        places = ctypes.POINTER(ctypes.c_int64)()
        count = self._native.rows_calls(self._handle, ctypes.byref(places))
        parts = [text[places[2 * n] : places[2 * n + 1]] for n in range(count)]
        if not parts:
            return []
        together = b"[" + b",".join(parts) + b"]"
        self._decoder = decoder_for(self._decoder, together)
        return self._decoder.decode(together)

    def take(self) -> tuple[dict[str, pl.DataFrame], Counter[str]]:
        """Return the rows made since the last time, and how many events of which unknown category."""
        if not self._has_rows:
            return {}, Counter()
        self._has_rows = False
        texts = _Handover(lambda *places: self._native.rows_texts(self._handle, *places)).series()
        rows = {name: self._rows(number) for number, name in enumerate(library.COLUMNS)}
        counts = rows.pop(library.IGNORED).to_series().value_counts(name="count")
        ignored: Counter[str] = Counter()
        for number, count in counts.iter_rows():
            ignored["" if number is None else texts[number]] += count
        categories = texts.cast(pl.Categorical)
        found = {name: _shaped(name, frame, categories) for name, frame in rows.items() if frame.height}
        return found, ignored

    def _rows(self, number: int) -> pl.DataFrame:
        names = list(library.COLUMNS.values())[number]
        fill = _Handover(lambda *places: self._native.rows_take(self._handle, number, *places))
        frame = fill.series().struct.unnest()
        frame.columns = list(names)
        return frame


def _shaped(name: str, rows: pl.DataFrame, texts: pl.Series) -> pl.DataFrame:
    """Return rows of the native reader as `columns` makes them."""
    found: dict[str, Any] = rows.to_dict()
    if name == "memcpy":
        found["kind"] = _by_row(tables.copy_kind, texts, found.pop("name"), found.pop("cat"))
    if name == "annotations":
        found["on_device"] = _by_row(tables.is_on_device, texts, found.pop("cat"))
    found |= {field: texts[found[field].cast(pl.UInt32)] for field in library.TEXTS & found.keys()}
    if name == "kernels":
        found["collective"] = found["collective"].cast(pl.String)
    if "external_id" in found:
        old = found.pop("external_id_old")
        if found["external_id"].null_count():
            found["external_id"] = pl.select(pl.coalesce(found["external_id"], old)).to_series()
    if "dur" not in found:
        found["dur"] = pl.Series([0], dtype=pl.Int64).new_from_index(0, rows.height)
    return pl.DataFrame([column.alias(_RENAMED.get(field, field)) for field, column in found.items()])


def _by_row(function: Callable[..., object], texts: pl.Series, *fields: pl.Series) -> pl.Series:
    """Return what `function` makes of the texts in each row; each combination is asked once."""
    rows = list(zip(*(field.to_list() for field in fields), strict=True))
    made = {row: function(*(None if n is None else texts[n] for n in row)) for row in set(rows)}
    return pl.Series([made[row] for row in rows])


def native_rows() -> NativeRows | None:
    """Return a place for the rows of one file; None without the native reader."""
    if (native := load_library()) is None:
        return None
    words, tables = library.native_words(), library.native_tables()
    handle = native.rows_open(words, len(words), tables, len(library.COLUMNS))
    return NativeRows(native, handle) if handle else None
