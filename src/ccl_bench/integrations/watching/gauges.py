"""Gauges with the values of the last window: a page for Prometheus, and pushes over OTLP."""

from __future__ import annotations

import logging
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ccl_bench import __version__
from ccl_bench.base.errors import UsageError
from ccl_bench.base.extras import require
from ccl_bench.base.text import plain
from ccl_bench.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.metrics.export import MetricsData

    from ccl_bench.integrations.watching.watch import MeasuredWindow

LOOPBACK = "127.0.0.1"

_LABEL_CHARACTERS = 200
_TIMEOUT_S = 3
"""Time limit for a collector, repeated attempts included."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit for dashboards: base units only."""

    suffix: str
    """Suffix of a name for Prometheus."""
    code: str
    """Unit in OpenTelemetry (UCUM)."""
    factor: float = 1.0
    """Factor from the unit of the metric."""


_UNITS = {
    "s": _Unit("seconds", "s"),
    "%": _Unit("ratio", "1", 0.01),
    "ratio": _Unit("ratio", "1"),
    "GB": _Unit("bytes", "By", 1e9),
    "GB/s": _Unit("bytes_per_second", "By/s", 1e9),
    "s/byte": _Unit("seconds_per_byte", "s/By"),
    "FLOP/byte": _Unit("flops_per_byte", "{flop}/By"),
    "calls": _Unit("calls", "{call}"),
    "nats": _Unit("nats", "{nat}"),
    "requests/s": _Unit("requests_per_second", "{request}/s"),
    "tokens/s": _Unit("tokens_per_second", "{token}/s"),
    "W": _Unit("watts", "W"),
    "J": _Unit("joules", "J"),
    "J/token": _Unit("joules_per_token", "J/{token}"),
    "tokens/s/W": _Unit("tokens_per_joule", "{token}/J"),
    "USD": _Unit("dollars", "{USD}"),
    "USD/Mtoken": _Unit("dollars_per_token", "{USD}/{token}", 1e-6),
    "MHz": _Unit("hertz", "Hz", 1e6),
    "°C": _Unit("celsius", "Cel"),
}


@dataclass(frozen=True, slots=True)
class Gauge:
    """One number with its name."""

    metric: str
    """Name of the metric, in lower case."""
    unit: _Unit
    about: str
    value: float

    @property
    def name(self) -> str:
        """The name for Prometheus, which ends in the unit."""
        return f"ccl_bench_{self.metric}_{self.unit.suffix}"


def gauges(measured: MeasuredWindow) -> list[Gauge]:
    """Return the values of a window in base units; a metric without a value has no gauge."""
    window_gauges = []
    for result in measured.values:
        unit = _UNITS.get(result.unit) or _Unit(_word(result.unit), "1")
        about = METRICS.get(result.metric).summary if result.metric in METRICS else result.metric
        window_gauges.append(Gauge(_word(result.metric), unit, about, (result.value or 0.0) * unit.factor))
    return window_gauges


def _word(text: str) -> str:
    """Return text as part of a name."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "value"


def _label(text: str) -> str:
    return plain(text)[:_LABEL_CHARACTERS]


def _findings(measured: MeasuredWindow) -> Counter[tuple[str, str]]:
    return Counter((finding.code, finding.severity) for finding in measured.findings)


class PrometheusPage:
    """A page at `http://HOST:PORT/metrics` with the numbers of the last window.

    It listens at `HOST:PORT`, `:PORT` or `PORT`; anything else raises UsageError.
    """

    def __init__(self, listen: str) -> None:
        client = require("prometheus_client", "watch")
        host, _, port_text = listen.rpartition(":")
        if not (port_text.isascii() and port_text.isdecimal() and int(port_text) < 1 << 16):
            raise UsageError(f"{listen!r} is not an address to listen on", fix=f"write it as {LOOPBACK}:9464")
        host, port = host.strip("[]") or LOOPBACK, int(port_text)
        self._last: MeasuredWindow | None = None
        self._count = 0
        registry = client.CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = client.start_http_server(port, host, registry)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror or error}", fix="choose another port"
            ) from error
        url_host = f"[{host}]" if ":" in host else host
        self.address = f"http://{url_host}:{self._server.server_address[1]}/metrics"

    def describe(self) -> list[Any]:
        """Return nothing: the families depend on the windows."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the families of the page."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        last, count = self._last, self._count
        if last is None:
            return
        run = [_label(last.run)]
        for gauge in gauges(last):
            family = GaugeMetricFamily(gauge.name, gauge.about, labels=["run"])
            family.add_metric(run, gauge.value)
            yield family
        findings = GaugeMetricFamily(
            "ccl_bench_findings", "Findings about the last window.", labels=["run", "code", "severity"]
        )
        for (code, severity), occurrences in _findings(last).items():
            findings.add_metric([*run, code, severity], occurrences)
        yield findings
        if last.step is not None:
            step = GaugeMetricFamily("ccl_bench_last_step", "Step of the last window.", labels=["run"])
            step.add_metric(run, last.step)
            yield step
        windows = CounterMetricFamily("ccl_bench_windows", "Number of measured windows.", labels=["run"])
        windows.add_metric(run, count)
        yield windows

    def show(self, measured: MeasuredWindow) -> None:
        """Show a window instead of the last one."""
        self._last, self._count = measured, self._count + 1

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class OtlpPush:
    """Pushes the numbers of each window to a collector that speaks OTLP over HTTP."""

    def __init__(self, url: str, remark: Callable[[str], None]) -> None:
        require("opentelemetry.sdk.metrics", "watch")
        require("opentelemetry.exporter.otlp.proto.http.metric_exporter", "watch")
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.resources import Resource

        if urlsplit(url).scheme not in {"http", "https"}:
            raise UsageError(
                f"{url!r} is not the address of a collector", fix="write it as http://localhost:4318"
            )
        endpoint = url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1/metrics"
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # failures are reported below
        self._endpoint, self._remark, self._is_up = endpoint, remark, True
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=_TIMEOUT_S)
        self._resource = Resource.create({"service.name": "ccl-bench", "service.version": __version__})

    def show(self, measured: MeasuredWindow) -> None:
        """Push a window; report a failure of the collector as a remark."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = self._data(measured)
        is_taken = data is not None and self._exporter.export(data) is MetricExportResult.SUCCESS
        if self._is_up and not is_taken:
            self._remark(
                f"{self._endpoint} did not accept the values of {measured.window}; later ones may be lost too"
            )
        self._is_up = is_taken

    def _data(self, measured: MeasuredWindow) -> MetricsData | None:
        """Return the values of this window only; instruments would also report earlier ones."""
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        reader = InMemoryMetricReader()
        provider = MeterProvider([reader], resource=self._resource, shutdown_on_exit=False)
        meter = provider.get_meter("ccl_bench", __version__)
        run = {"run": _label(measured.run)}
        for gauge in gauges(measured):
            instrument = meter.create_gauge(f"ccl_bench.{gauge.metric}", gauge.unit.code, gauge.about)
            instrument.set(gauge.value, run)
        findings = meter.create_gauge("ccl_bench.findings", "{finding}", "Findings about the window.")
        for (code, severity), count in _findings(measured).items():
            findings.set(count, {**run, "code": code, "severity": severity})
        if measured.step is not None:
            meter.create_gauge("ccl_bench.last_step", "1", "Step of the window.").set(measured.step, run)
        data = reader.get_metrics_data()
        provider.shutdown()
        return data

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()
