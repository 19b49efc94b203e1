"""`prices.toml`: what an hour of a device costs, by model, with the date and the source of each price."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from ccl_bench.card.yaml_tree import Reading, shown
from ccl_bench.side_files.json_file import finite_number, report_unknown_keys
from ccl_bench.side_files.toml_file import toml_value
from ccl_bench.storage.files import read_text

if TYPE_CHECKING:
    from ccl_bench.card.yaml_tree import IssueLog
    from ccl_bench.storage.files import Location

FILE_NAME = "prices.toml"
CURRENCY = "USD"
"""The only currency: costs in two of them cannot be compared, and rates of exchange change daily."""

MOST_USD = 1e6
"""No device costs as much for an hour; the most expensive machines of eight are rented for some hundred."""

_TABLE = "price"
_KEYS = ("device", "price_per_device_hour", "currency", "date", "source")
_WRITE = (
    'write [[price]] and below it device = "H100 SXM", price_per_device_hour = 2.5, currency = "USD", '
    'date = 2026-03-01 and source = "https://..."'
)


@dataclass(frozen=True, slots=True)
class DevicePrice:
    """What one device costs for one hour."""

    device: str
    """Model of the device, as the file names it."""
    usd: float
    """US dollars for a device and hour."""
    date: str
    """Day on which the price held, as YYYY-MM-DD."""
    source: str
    """Where it comes from, such as an address or a contract."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of a file."""

    devices: tuple[DevicePrice, ...] = ()


def read_prices(path: Location) -> Reading[Prices]:
    """Return the prices in a file; InputError only where it is not TOML."""
    return prices_in_text(read_text(path), file=str(path))


def prices_in_text(text: str, *, file: str = "") -> Reading[Prices]:
    """Return the prices in TOML text, without those whose date or source is missing: each is an error."""
    data, log = toml_value(text, file)
    tables = data.get(_TABLE)
    report_unknown_keys(((key, shown(key)) for key in data if key != _TABLE), (_TABLE,), log)
    if not isinstance(tables, list) or not tables:
        log.error("", "holds no price", _WRITE)
        tables = []
    prices = [_price(table, f"{_TABLE}[{index}]", log) for index, table in enumerate(tables)]
    return Reading(Prices(tuple(price for price in prices if price)), log.in_order(), file)


def _price(table: Any, path: str, log: IssueLog) -> DevicePrice | None:
    """Return one price, or None and each reason why there is none."""
    if not isinstance(table, dict):
        log.error(path, "is not a table", _WRITE)
        return None
    report_unknown_keys(((key, f"{path}.{shown(key)}") for key in table if key not in _KEYS), _KEYS, log)
    before = len(log.entries)
    values = {key: table[key] for key in _KEYS if table.get(key) not in (None, "")}
    for key in (key for key in _KEYS if key not in values):
        log.error(f"{path}.{key}", "is missing, so this price is not used", _WRITE, line=log.lines.get(path))
    usd, day = None, str(values.get("date"))
    if "price_per_device_hour" in values:
        place = f"{path}.price_per_device_hour"
        usd = finite_number(values["price_per_device_hour"], place, log)
        if usd is not None and not 0 < usd <= MOST_USD:
            message = f"{usd:g} is no price of a device and hour"
            log.error(place, message, "write US dollars for one device and one hour")
    if values.get("currency", CURRENCY) != CURRENCY:
        message = f"{shown(repr(values['currency']))} is not {CURRENCY}, the currency of all costs"
        fix = f"write the price in {CURRENCY}, and the rate of exchange into source"
        log.error(f"{path}.currency", message, fix)
    if "date" in values:
        try:
            day = date.fromisoformat(day).isoformat()
        except ValueError:
            log.error(f"{path}.date", f"{shown(repr(day))} is not a date", "write it as 2026-03-01")
    for key in ("device", "source"):
        if not isinstance(values.get(key, ""), str):
            log.error(f"{path}.{key}", "is not a text", "write it between quotation marks")
    if usd is None or len(log.entries) > before:
        return None
    return DevicePrice(values["device"], usd, day, values["source"])
