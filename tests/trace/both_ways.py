"""Read the same bytes with and without the native reader."""

import io
import os
from unittest import mock

import pytest

from ccl_bench.base.errors import InputError
from ccl_bench.trace.formats.kineto.native.reader import NativeRows
from ccl_bench.trace.formats.kineto.reader import read_kineto
from ccl_bench.trace.native import library

needs_native = pytest.mark.skipif(
    library.absence() is not None,
    reason=f"no native reader ({library.absence()}): 'python -m pip install -e .' builds it",
)


def read_natively(data: bytes):
    """Return the content and how many pieces the native reader refused."""
    refused = []
    feed = NativeRows.feed

    def noted(self, text, *, must_end):
        end = feed(self, text, must_end=must_end)
        refused.extend([text] if end is None else [])
        return end

    with mock.patch.object(NativeRows, "feed", noted):
        return read_kineto(io.BytesIO(data), "trace.json"), len(refused)


def read_by_decoder(data: bytes):
    """Return the content as it is read where there is no native reader."""
    with mock.patch.dict(os.environ, {library.VARIABLE: "0"}):
        return read_kineto(io.BytesIO(data), "trace.json")


def checked(data: bytes):
    """Return the content, which both ways of reading agree on."""
    found = read_kineto(io.BytesIO(data), "trace.json")
    assert _unlike(read_by_decoder(data), found) == []
    return found


def differences(data: bytes) -> list[str]:
    """Return in what the two ways of reading differ: nothing, unless one of them is wrong."""
    try:
        expected = read_by_decoder(data)
    except InputError as error:
        with pytest.raises(InputError):
            read_natively(data)
        return [] if str(error) else ["an error without words"]
    return _unlike(expected, read_natively(data)[0])


def _unlike(expected, found) -> list[str]:
    """Return in what the content that the decoder gives and that of C differ.

    C sees every key that an event states twice, the decoder only those that decide most.
    """
    parts = [name for name in expected.tables if not _same(expected.table(name), found.table(name))]
    (findings, few), (found_findings, many) = map(_without_repeated_keys, (expected, found))
    parts += [] if few <= many else [f"{few} events with repeated keys, {many} in C"]
    parts += [] if findings == found_findings else [f"{findings} != {found_findings}"]
    for part in ("rank", "world_size", "attributes"):
        if getattr(expected, part) != getattr(found, part):
            parts.append(f"{part}: {getattr(expected, part)} != {getattr(found, part)}")
    return parts


def _without_repeated_keys(content):
    findings = [finding for finding in content.findings if finding.code != "keys-repeated"]
    return findings, sum(finding.count for finding in content.findings if finding.code == "keys-repeated")


def _same(one, other) -> bool:
    return one.schema == other.schema and one.equals(other, null_equal=True)
