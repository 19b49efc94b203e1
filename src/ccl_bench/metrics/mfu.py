"""The metric `mfu`: model FLOPs utilisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.analysis import flops
from ccl_bench.base.errors import CclBenchError, NotApplicable, NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog import devices as device_catalog
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.programs import TERA, mfu_of_programs
from ccl_bench.metrics.throughput_tokens_sec import throughput_tokens_sec

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.catalog.devices import Device
    from ccl_bench.result.details import MfuDetails


@dataclass(frozen=True, slots=True)
class _Flops:
    per_token: float
    convention: str
    source: str
    others: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Peak:
    per_device: float
    device: str
    precision: str
    source: str
    findings: list[Finding] = field(default_factory=list)


_STATE_PRECISION = "write the precision of the matrix products into the workload card"


@metric(unit="%", better="higher", otherwise=(mfu_of_programs,), revision=4)
def mfu(
    step_times: pl.DataFrame,
    devices: pl.DataFrame,
    facts: Facts,
    product_types: pl.DataFrame | None = None,
) -> Measurement:
    """Model FLOPs utilisation: operations that the model needs, as a share of the peak of the devices.

    Formula:
        mfu = 100 * model_flops_per_token * tokens/s / (world_size * gpu_peak_tflops * 10^12)
        else, of a profile of XLA: 100 * operations of its programs in steps / time of steps / peak

        FLOPs per token from `run_metadata.json`, else from the architecture in the card or catalog:
        training 6(N - N_emb) + 12 L H Q T, inference 2(N - N_emb) + 4 L H Q T; a mixture of
        experts counts its active parameters.

    Caveats:
        The peak is the dense one of the run's precision: as stated, else that of at least 95 % of the
        operations of the recorded matrix products. If the device or the precision is unknown, there is no
        value; no default is assumed. The details name the convention and the value under others: causal
        attention counted by half (Megatron-LM), and HFU with full recomputation. Compare only values of
        the same convention. Above 100 % a stated value is wrong.

    Reference:
        PaLM, arXiv 2204.02311, appendix B; HFU: arXiv 2205.05198.
    """
    peak = _peak(devices, facts, product_types)
    rate = throughput_tokens_sec(step_times, facts)
    count = facts.needed("world_size")
    work = _flops_per_token(facts)
    scale = 100 * rate.value / (float(str(count.value)) * peak.per_device)
    value = work.per_token * scale
    if value > 100:
        raise CclBenchError(
            f"model FLOPs utilisation is {value:.1f} %, more than the hardware can reach",
            fix=f"check tokens per step, FLOPs per token ({work.source}), world_size ({count.source}) "
            f"and the peak ({peak.source})",
        )
    per_step = rate.details["per_step_tokens_per_s"]
    details: MfuDetails = {
        "convention": work.convention,
        "model_flops_per_token": work.per_token,
        "model_flops_per_token_source": work.source,
        "tokens_per_s": rate.value,
        "per_step_pct": {step: value * tokens / rate.value for step, tokens in per_step.items()},
        "gpus": count.value,
        "gpu_peak_tflops": peak.per_device / TERA,
        "gpu_peak_source": peak.source,
        "device": peak.device,
        "precision": peak.precision,
        "achieved_tflops_per_gpu": value / 100 * peak.per_device / TERA,
        "other_conventions_pct": {name: per_token * scale for name, per_token in work.others.items()},
    }
    return Measurement(value, details, rate.window, rate.ranks, peak.findings)


def _peak(devices: pl.DataFrame, facts: Facts, product_types: pl.DataFrame | None) -> _Peak:
    """Return the dense peak of one device, as stated or from the catalog."""
    precision = str(facts.precision.value) if facts.precision else ""
    kinds = devices.filter(pl.col("name") != "").group_by("name", "memory_bytes")
    seen = list(kinds.agg(pl.col("trace").unique().sort()).sort("name", "memory_bytes").iter_rows())
    if facts.gpu_peak_tflops:
        stated_peak = facts.gpu_peak_tflops
        names = {name for name, _, _ in seen} or {facts.device.value if facts.device else "unknown"}
        return _Peak(
            stated_peak.value * TERA, " or ".join(sorted(names)), precision or "unknown", stated_peak.source
        )
    name, memory_bytes, source = _device(seen, facts)
    try:
        device = device_catalog.device(name, memory_bytes=memory_bytes)
    except NotMeasurable as error:
        raise NotApplicable(error.message, fix=error.fix, is_repairable=True) from error
    findings = []
    if not precision:
        precision, finding = _recorded_precision(product_types, device)
        findings = [finding]
    peak_source = f"catalog, {device.name} {precision} ({source})"
    return _Peak(device.peak_flops(precision), device.name, precision, peak_source, findings)


def _recorded_precision(product_types: pl.DataFrame | None, device: Device) -> tuple[str, Finding]:
    """Return the precision of nearly all recorded matrix products, with a note; else raise NotMeasurable."""
    unknown = "the precision of the matrix multiplications is unknown, so the peak is unknown too"
    if product_types is None or not product_types["flops"].sum():
        raise NotMeasurable(unknown, fix=_STATE_PRECISION, is_repairable=True)
    try:
        name, share = flops.precision_of_products(product_types)
    except NotMeasurable as error:
        raise NotMeasurable(
            f"{unknown}: {error.message}", fix=_STATE_PRECISION, is_repairable=True
        ) from error
    if name == "fp32" and device.has_faster_tf32:
        why = "the recorded matrix products are fp32, which tensor cores may multiply in TF32"
        raise NotMeasurable(f"{unknown}: {why}", fix=f"{_STATE_PRECISION}: fp32 or tf32", is_repairable=True)
    message = (
        f"precision {name} is that of {100 * share:.3g} % of the operations of the recorded matrix products"
    )
    return name, Finding("precision-recorded", "note", message)


def _device(seen: list[tuple[str, int | None, list[int]]], facts: Facts) -> tuple[str, int | None, str]:
    """Return name, memory and source of the device: from the traces, else from the card.

    `seen` has name, memory and traces of each kind of device that the recording processes saw. A process
    sees every device of its machine. If all machines hold the same several kinds, the card states which kind
    was used; if ranks saw different ones, there is no single peak.
    """
    models = {_model(name, memory_bytes) for name, memory_bytes, _ in seen}
    if len(models) == 1:
        name, memory_bytes, _ = seen[0]
        return name, memory_bytes, "deviceProperties of the traces"
    if len({tuple(traces) for _, _, traces in seen}) > 1 or (seen and not facts.device):
        raise NotMeasurable(
            f"the ranks saw different devices: {', '.join(sorted(models))}",
            fix="write gpu_peak_tflops, the mean peak, into run_metadata.json",
            is_repairable=True,
        )
    if not facts.device:
        raise NotApplicable(
            "the run names no accelerator, so there is no peak to compare with",
            fix="write gpu_peak_tflops into run_metadata.json, or the device into the workload card",
            is_repairable=True,
        )
    return facts.device.value, None, facts.device.source


def _model(name: str, memory_bytes: int | None) -> str:
    """Return the name in the catalog; drivers report slightly different memory sizes for one model."""
    try:
        return device_catalog.device(name, memory_bytes=memory_bytes).name
    except NotMeasurable:
        return name


def _flops_per_token(facts: Facts) -> _Flops:
    architecture = _architecture(facts)
    phase = facts.phase.value if facts.phase else ""
    others: dict[str, float] = {}
    if architecture and phase in flops.FORWARD_PASSES:
        others["causal attention by half (Megatron-LM)"] = flops.causal(architecture, phase)
        if phase == "training":
            others["HFU with full recomputation"] = flops.hardware_with_recompute(architecture)
    stated_flops = facts.model_flops_per_token
    if stated_flops:
        if architecture and phase in flops.FORWARD_PASSES:
            others["PaLM, from the architecture"] = flops.palm(architecture, phase)
        return _Flops(stated_flops.value, "as stated", stated_flops.source, others)
    if not architecture:
        if facts.is_moe and facts.is_moe.value and not facts.num_params_active:
            raise NotMeasurable(
                "the model is a mixture of experts, and the number of active parameters is unknown",
                fix="write num_params_active into the workload card",
                is_repairable=True,
            )
        raise NotMeasurable(
            "FLOPs per token are unknown: neither stated nor computable from an architecture",
            fix="write model_flops_per_token into run_metadata.json, "
            "or workload.model.model_arch into the card",
            is_repairable=True,
        )
    if phase not in flops.FORWARD_PASSES:
        raise NotMeasurable(
            "the phase is unknown, and training costs three times as much as inference",
            fix="write workload.model.phase: training, or inference, into the card",
            is_repairable=True,
        )
    source = facts.num_layers.source if facts.num_layers else ""
    return _Flops(flops.palm(architecture, phase), "PaLM", f"architecture from {source}", others)


def _architecture(facts: Facts) -> flops.ModelSizes | None:
    is_mixture = facts.is_moe is not None and facts.is_moe.value
    total = facts.num_params_active or (None if is_mixture else facts.num_params)
    embedding = facts.num_params_embedding
    layers, heads, head_dim, length = facts.num_layers, facts.num_heads, facts.head_dim, facts.seq_len
    if not (total and embedding and layers and heads and head_dim and length):
        return None
    if embedding.value > total.value:
        raise NotMeasurable(
            f"the embedding has more parameters ({embedding.value}) than the model ({total.value})",
            fix="correct num_params or num_params_embedding in the workload card",
            is_repairable=True,
        )
    return flops.ModelSizes(
        total.value - embedding.value, layers.value, heads.value, head_dim.value, length.value
    )
