"""Reading prices.toml: prices with date and source, and the reasons why one is not used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccl_bench.base.errors import InputError
from ccl_bench.side_files import DevicePrice, read_prices
from ccl_bench.side_files.kinds import PRICES, kind_of
from ccl_bench.side_files.prices import prices_in_text

if TYPE_CHECKING:
    from pathlib import Path

LINES = {
    "device": '"H100 SXM"',
    "price_per_device_hour": "2.5",
    "currency": '"USD"',
    "date": "2026-03-01",
    "source": '"https://example.org/prices"',
}


def toml(**changes: str | None) -> str:
    """Return one price as TOML; a change to None takes a key away."""
    lines = {key: value for key, value in (LINES | changes).items() if value is not None}
    return "[[price]]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items())


def test_each_price_has_its_date_and_source(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(toml() + toml(device='"A100"', price_per_device_hour="1", date='"2025-12-31"'))
    assert kind_of(path) is PRICES
    reading = read_prices(path)
    source = "https://example.org/prices"
    first, second = reading.value.devices
    assert first == DevicePrice("H100 SXM", 2.5, "2026-03-01", source)
    assert second == DevicePrice("A100", 1, "2025-12-31", source)
    assert reading.issues == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *((key, None, "is missing") for key in LINES),
        ("source", '""', "is missing"),
        ("source", "7", "is not a text"),
        ("device", "[1]", "is not a text"),
        ("currency", '"EUR"', "is not USD"),
        ("date", '"last week"', "is not a date"),
        ("date", "2026-03-01T12:00:00", "is not a date"),
        ("price_per_device_hour", "0", "no price"),
        ("price_per_device_hour", "1.1e6", "no price"),
        ("price_per_device_hour", "nan", "not a finite number"),
        ("price_per_device_hour", '"2.5"', "is not a number"),
    ],
)
def test_a_price_without_one_of_these_is_not_used(key: str, value: str | None, message: str) -> None:
    reading = prices_in_text(toml() + toml(**{key: value}))
    assert len(reading.value.devices) == 1
    (issue,) = reading.errors
    assert (issue.path, message in issue.message) == (f"price[1].{key}", True)
    assert issue.line is not None and issue.line >= 7
    assert issue.fix


def test_all_mistakes_are_reported_together_and_other_keys_do_no_harm() -> None:
    reading = prices_in_text(toml(date=None, currency='"EUR"', price_per_device_hour="-1"))
    keys = ("price_per_device_hour", "currency", "date")
    assert {issue.path for issue in reading.errors} == {f"price[0].{key}" for key in keys}


@pytest.mark.parametrize(
    "text", ["", 'currency = "USD"\n', "price = 3\n", "price = [1]\n", "[price]\nx = 1\n"]
)
def test_a_file_without_prices_says_how_to_write_one(text: str) -> None:
    reading = prices_in_text(text)
    assert reading.value.devices == ()
    assert "[[price]]" in reading.errors[0].fix


def test_what_is_no_toml_is_an_error() -> None:
    with pytest.raises(InputError, match="not valid TOML"):
        prices_in_text("[[price]\n", file="prices.toml")
