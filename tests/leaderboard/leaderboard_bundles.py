"""Bundles of published runs for tests, small ones, in whatever number."""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ccl_bench import metrics
from ccl_bench.leaderboard.bundle.format import CARD, PROVENANCE, REPORT, RESULTS, bundle_id, write_history
from ccl_bench.leaderboard.store import State, new_event
from ccl_bench.result import Provenance, Result, ResultFinding, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.leaderboard.store import Store

UNITS: dict[str, tuple[str, Literal["higher", "lower", "neither"]]] = {
    "throughput_tokens_sec": ("tokens/s", "higher"),
    "iteration_wall_clock_time": ("s", "lower"),
    "mfu": ("%", "higher"),
    "gpu_busy": ("%", "higher"),
    "comm_comp_overlap": ("%", "higher"),
    "exposed_communication_time": ("s", "lower"),
    "straggler": ("ratio", "lower"),
    "coll_call_num": ("calls", "neither"),
    "TTFT": ("s", "lower"),
    "TPOT": ("s", "lower"),
    "output_throughput": ("tokens/s", "higher"),
}
DERIVED_UNITS: dict[str, tuple[str, str]] = dict.fromkeys(
    ("interactivity", "output_throughput_per_device", "training_throughput_per_device"),
    ("tokens/s", "higher"),
)
"""Numbers that a board derives from those."""
_FRAMEWORKS = {"training": ("torchtitan", "megatron-lm"), "inference": ("vllm", "sglang")}
START = datetime(2026, 1, 1, tzinfo=UTC)


@cache
def revision_now(metric: str) -> int:
    """Return the revision of a metric; looking for metrics anew for each of many rows takes long."""
    return metrics.load().get(metric).revision


_CARD = """version: 1
description: {description}
contributor: {submitter}
workload:
  model:
    phase: {phase}
    moe: false
    model_family: {model}
    precision: {precision}
  data:
    batch_size: {batch}
    seq_len: {seq_len}
    input_len: {seq_len}
    output_len: 128
    dataset: c4
  hardware:
    xpu_spec: {{type: GPU, model: {hardware}, total_count: {devices}, count_per_node: 8, num_nodes: {nodes}}}
Model-executor:
  framework: {{name: {framework}, version: {framework_version}}}
  model_plan_parallelization: {{dp_replicate: 1, dp_shard: {dp_shard}, tp: {tp}, pp: {pp}, cp: 1, ep: 1}}
  communication_library: {{name: {library}, version: {library_version}}}
"""


@dataclass(frozen=True)
class Made:
    """What a bundle is made of; texts stand in the card as JSON strings, which are YAML too."""

    name: str = "run"
    submitter: str = "Ada Lovelace"
    description: str = "a run"
    phase: str = "training"
    model: str = "llama-3.1-8b"
    precision: str = "bf16"
    batch: int = 32
    seq_len: int = 4096
    hardware: str = "H100"
    devices: int = 8
    nodes: int = 1
    framework: str = "torchtitan"
    framework_version: str = "0.2.2"
    library: str = "NCCL"
    library_version: str = "2.27.5"
    dp_shard: int = 8
    tp: int = 1
    pp: int = 1
    values: dict[str, float] = field(default_factory=dict)
    revision: int = 0
    """Revision of the metrics; 0 for the one they have now."""
    window: str = "ProfilerStep"
    findings: tuple[ResultFinding, ...] = ()
    state: State = State.SELF_REPORTED
    day: int = 0
    """Days after START."""
    extra: tuple[Result, ...] = ()
    report: bytes = b""
    stated: dict[str, Any] = field(default_factory=dict)
    """Further keys of the provenance."""

    @property
    def card(self) -> str:
        """The card's text."""
        texts = ("description", "submitter", "phase", "model", "precision", "hardware", "framework")
        texts += ("framework_version", "library", "library_version")
        said = {name: json.dumps(getattr(self, name)) for name in texts}
        numbers = ("batch", "seq_len", "devices", "nodes", "dp_shard", "tp", "pp")
        return _CARD.format(**said, **{name: getattr(self, name) for name in numbers})

    @property
    def results(self) -> list[Result]:
        """One for each value."""
        made = [self._result(name, value) for name, value in self.values.items()]
        return [*made, *self.extra]

    @property
    def shown(self) -> dict[str, float]:
        """The values with those that a board derives from them."""
        derived = {
            "interactivity": 1 / self.values["TPOT"] if "TPOT" in self.values else None,
            "output_throughput_per_device": self._for_each_device("output_throughput"),
            "training_throughput_per_device": self._for_each_device("throughput_tokens_sec"),
        }
        return self.values | {name: value for name, value in derived.items() if value is not None}

    def _for_each_device(self, metric: str) -> float | None:
        return self.values[metric] / self.devices if metric in self.values else None

    def _result(self, name: str, value: float) -> Result:
        unit, better = UNITS[name]
        made_by = Provenance("0.1.0", self.revision or revision_now(name))
        found = list(self.findings)
        return Result(name, "ok", unit, better, value, window=self.window, findings=found, provenance=made_by)


def written(made: Made, folder: Path) -> Path:
    """Write a bundle's files into a folder, and its history, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD).write_text(made.card, encoding="utf-8")
    (folder / RESULTS).write_bytes(to_json(made.results))
    provenance: dict[str, Any] = {
        "run": made.name,
        "made_at": f"{START + timedelta(days=made.day):%Y-%m-%dT%H:%M:%SZ}",
        "tool_version": "0.1.0",
        "traces": [{"file": "kineto_trace_0.json", "sha256": _hash(made), "size": 1000, "rank": 0}],
        **made.stated,
    }
    (folder / PROVENANCE).write_text(json.dumps(provenance), encoding="utf-8")
    if made.report:
        (folder / REPORT).write_bytes(made.report)
    return folder


def _hash(made: Made) -> str:
    """Return the hash of the traces: runs of different names were recorded apart."""
    return hashlib.sha256(made.name.encode()).hexdigest()


def added(store: Store, made: Made) -> str:
    """Publish a bundle to a store and return its identifier."""
    prepared = Path(tempfile.mkdtemp(dir=store.data, prefix=".incoming-"))
    return store.add(written(made, prepared), _event(made))[0]


def placed(data: Path, many: list[Made]) -> list[str]:
    """Put bundles into a data directory as if somebody had copied them there."""
    found = []
    for number, made in enumerate(many):
        prepared = written(made, data / f"incoming-{number}")
        write_history(prepared, [_event(made)])
        run = bundle_id(prepared)
        (data / "runs").mkdir(exist_ok=True)
        prepared.rename(data / "runs" / run)
        found.append(run)
    return found


def _event(made: Made) -> Any:
    return new_event(made.state, made.submitter, at=START + timedelta(days=made.day))


WORKLOADS = 40


def many(count: int, *, seed: int = 7, workloads: int = WORKLOADS) -> Iterator[Made]:
    """Yield bundles as a community might publish them: a few workloads, much hardware, two phases."""
    draw = random.Random(seed)
    kinds = [
        (phase, model, precision, batch)
        for phase in ("training", "inference")
        for model in ("llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b", "mixtral-8x7b", "deepseek-v3")
        for precision in ("bf16", "fp8")
        for batch in (32, 256)
    ][:workloads]
    for number in range(count):
        phase, model, precision, batch = draw.choice(kinds)
        devices = draw.choice((8, 16, 32, 64))
        tp, pp = draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 2))
        speed = draw.lognormvariate(0, 0.4) * devices
        training = {
            "throughput_tokens_sec": round(9000 * speed, 3),
            "iteration_wall_clock_time": round(batch * 4096 / (9000 * speed), 6),
            "mfu": round(min(20 + 10 * speed / devices, 70), 4),
            "gpu_busy": round(draw.uniform(60, 99), 3),
            "comm_comp_overlap": round(draw.uniform(0, 95), 3),
            "exposed_communication_time": round(draw.uniform(0.01, 0.5), 5),
            "straggler": round(draw.uniform(0, 0.2), 5),
            "coll_call_num": float(draw.randrange(100, 900)),
        }
        inference = {
            "output_throughput": round(800 * speed, 2),
            "TTFT": round(draw.uniform(0.05, 2), 5),
            "TPOT": round(draw.uniform(0.005, 0.08), 6),
            "gpu_busy": round(draw.uniform(40, 95), 3),
        }
        yield Made(
            name=f"run-{number:05d}",
            submitter=draw.choice(("Ada Lovelace", "Grace Hopper", "Alan Turing", "Barbara Liskov")),
            phase=phase,
            model=model,
            precision=precision,
            batch=batch,
            hardware=draw.choice(("H100", "A100-SXM4-40GB", "MI300X", "B200")),
            devices=devices,
            nodes=devices // 8,
            framework=draw.choice(_FRAMEWORKS[phase]),
            framework_version=draw.choice(("0.1.0", "0.2.2", "0.10.1")),
            library=draw.choice(("NCCL", "RCCL", "MSCCL++")),
            dp_shard=max(1, devices // (tp * pp)),
            tp=tp,
            pp=pp,
            values=training if phase == "training" else inference,
            state=draw.choice((State.SELF_REPORTED, State.VERIFIED)),
            day=number % 300,
        )


def changed(made: Made, **changes: Any) -> Made:
    """Return the same with other values."""
    return replace(made, **changes)
