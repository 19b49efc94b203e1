"""Model FLOPs utilisation, each number worked out by hand."""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.base.errors import CclBenchError, NotApplicable, NotMeasurable
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.metrics.mfu import mfu
from ccl_bench.result import EXIT_STATUS
from ccl_bench.run import open_run

A100 = ("NVIDIA A100-SXM4-80GB", 84_987_740_160)
A100_AFTER_DRIVER_UPDATE = ("NVIDIA A100-SXM4-80GB", 85_175_107_584)
H100 = ("NVIDIA H100 80GB HBM3", 85_029_158_912)

LLAMA_8B = {
    "num_params": 8_030_261_248,
    "num_params_embedding": 525_336_576,
    "num_layers": 32,
    "num_heads": 32,
    "head_dim": 128,
}

LLAMA_CARD = """
workload:
  model:
    phase: training
    precision: bf16
    model_family: llama-3.1-8b
  data: {batch_size: 8, batch_size_scope: global, seq_len: 4096}
  hardware:
    xpu_spec: {type: GPU, model: A100-SXM4-80GB, total_count: 8}
hf_url: https://huggingface.co/meta-llama/Llama-3.1-8B
"""


def facts(**values: object) -> Facts:
    """Return facts of one source."""
    return Facts(**{name: Fact(value, "stated") for name, value in values.items()})


def seconds(*durations: float) -> pl.DataFrame:
    """Return the table of step times for steps of these lengths."""
    return pl.DataFrame(
        {
            "iteration": [None] * len(durations),
            "rank": [None] * len(durations),
            "step": list(range(len(durations))),
            "duration_ns": [round(duration * 1e9) for duration in durations],
            "host_ns": [None] * len(durations),
            "source": ["step_times.json"] * len(durations),
        },
        schema_overrides=dict.fromkeys(("iteration", "rank", "host_ns"), pl.Int64),
    )


def devices(*by_rank: list[tuple[str, int]]) -> pl.DataFrame:
    """Return the table of the devices that each rank saw."""
    rows = [(trace, name, memory) for trace, seen in enumerate(by_rank) for name, memory in seen]
    return pl.DataFrame(
        {
            "name": [name for _, name, _ in rows],
            "memory_bytes": [memory for _, _, memory in rows],
            "trace": [trace for trace, _, _ in rows],
        },
        schema={"name": pl.String, "memory_bytes": pl.Int64, "trace": pl.Int64},
    )


STATED = facts(world_size=8, tokens_per_step=32_768, model_flops_per_token=4e10, precision="bf16")


def test_stated_flops_on_a100_in_bf16():
    # 32,768 tokens in 2 s = 16,384 tokens/s; 4e10 FLOP each = 6.5536e14 FLOP/s; of 8 x 312e12 = 2.496e15
    found = mfu(seconds(2.0), devices([A100]), STATED)

    assert found.value == pytest.approx(100 * 6.5536e14 / 2.496e15)
    assert found.value == pytest.approx(26.2564, abs=1e-4)
    assert found.details["gpu_peak_tflops"] == 312
    assert found.details["convention"] == "as stated"
    assert found.details["achieved_tflops_per_gpu"] == pytest.approx(6.5536e14 / 8 / 1e12)


def test_llama_8b_in_training_by_the_palm_convention():
    # 6 (8,030,261,248 - 525,336,576) = 45,029,548,032; 12 x 32 x 32 x 128 x 4096 = 6,442,450,944
    known = facts(
        world_size=8, tokens_per_step=32_768, precision="bf16", phase="training", seq_len=4096, **LLAMA_8B
    )

    found = mfu(seconds(4.0), devices([A100]), known)

    assert found.details["model_flops_per_token"] == 45_029_548_032 + 6_442_450_944
    assert found.details["convention"] == "PaLM"
    assert found.value == pytest.approx(100 * 51_471_998_976 * 8192 / (8 * 312e12))


def test_the_other_conventions_are_in_the_details():
    known = facts(
        world_size=8, tokens_per_step=32_768, precision="bf16", phase="training", seq_len=4096, **LLAMA_8B
    )

    found = mfu(seconds(4.0), devices([A100]), known)

    scale = 100 * 8192 / (8 * 312e12)
    assert found.details["other_conventions_pct"] == pytest.approx(
        {
            "causal attention by half (Megatron-LM)": (45_029_548_032 + 6_442_450_944 / 2) * scale,
            # the forward pass twice: 4/3 of the operations
            "HFU with full recomputation": 51_471_998_976 * 4 / 3 * scale,
        }
    )


def test_inference_costs_a_third_of_training():
    # 2 (N - N_emb) + 4 L H Q T
    known = facts(
        world_size=1, tokens_per_step=4096, precision="bf16", phase="inference", seq_len=4096, **LLAMA_8B
    )

    found = mfu(seconds(1.0), devices([A100]), known)

    assert found.details["model_flops_per_token"] == 2 * 7_504_924_672 + 4 * 32 * 32 * 128 * 4096
    assert "HFU with full recomputation" not in found.details["other_conventions_pct"]


def test_a_mixture_of_experts_counts_its_active_parameters():
    experts = LLAMA_8B | {"num_params": 46_702_792_704, "num_params_active": 12_879_925_248}
    known = facts(
        world_size=8,
        tokens_per_step=32_768,
        precision="bf16",
        phase="training",
        seq_len=4096,
        is_moe=True,
        **experts,
    )

    found = mfu(seconds(8.0), devices([A100]), known)

    assert found.details["model_flops_per_token"] == 6 * (12_879_925_248 - 525_336_576) + 6_442_450_944


def test_a_mixture_of_experts_without_active_parameters_has_no_value():
    known = facts(
        world_size=8,
        tokens_per_step=32_768,
        precision="bf16",
        phase="training",
        seq_len=4096,
        is_moe=True,
        **LLAMA_8B,
    )

    with pytest.raises(NotMeasurable, match="mixture of experts"):
        mfu(seconds(8.0), devices([A100]), known)


def test_a_stated_peak_wins_over_the_catalog():
    found = mfu(
        seconds(2.0), devices([A100]), replace(STATED, gpu_peak_tflops=Fact(624.0, "run_metadata.json"))
    )

    assert found.value == pytest.approx(100 * 6.5536e14 / (8 * 624e12))
    assert found.details["gpu_peak_source"] == "run_metadata.json"


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("TPU v5e", "bf16", 197),
        ("TPU v5p", "bf16", 459),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("AMD Instinct MI250X", "bf16", 191.5),  # one of its two dies, which is what a rank holds
        ("NVIDIA H100 80GB HBM3", "fp8", 1979),
        ("NVIDIA H100 PCIe", "bf16", 756),
    ],
)
def test_other_makers_and_precisions_have_their_own_dense_peak(name: str, precision: str, peak: float):
    known = replace(STATED, device=Fact(name, "workload card"), precision=Fact(precision, "workload card"))

    found = mfu(seconds(2.0), devices(), known)

    assert found.details["gpu_peak_tflops"] == pytest.approx(peak, rel=2e-3)


def test_an_unknown_device_has_no_default_peak():
    with pytest.raises(NotApplicable, match="Voodoo"):
        mfu(seconds(2.0), devices([("Voodoo 5", 64 << 20)]), STATED)


def test_without_any_device_it_does_not_apply():
    with pytest.raises(NotApplicable, match="no accelerator"):
        mfu(seconds(2.0), devices(), STATED)


def test_an_unknown_precision_has_no_peak():
    with pytest.raises(NotMeasurable, match="precision"):
        mfu(seconds(2.0), devices([A100]), replace(STATED, precision=None))


def test_a_precision_that_the_device_lacks_has_no_peak():
    with pytest.raises(NotMeasurable, match="fp8"):
        mfu(seconds(2.0), devices([A100]), replace(STATED, precision=Fact("fp8", "workload card")))


def test_without_a_phase_the_architecture_is_not_enough():
    known = facts(world_size=8, tokens_per_step=32_768, precision="bf16", seq_len=4096, **LLAMA_8B)

    with pytest.raises(NotMeasurable, match="phase"):
        mfu(seconds(4.0), devices([A100]), known)


def test_without_flops_and_architecture_there_is_no_value():
    with pytest.raises(NotMeasurable, match="FLOPs per token"):
        mfu(seconds(2.0), devices([A100]), replace(STATED, model_flops_per_token=None))


@pytest.mark.parametrize("missing", ["world_size", "tokens_per_step"])
def test_without_a_count_that_it_divides_or_multiplies_by_there_is_no_value(missing: str):
    with pytest.raises(NotMeasurable):
        mfu(seconds(2.0), devices([A100]), replace(STATED, **{missing: None}))


def test_an_embedding_larger_than_the_model_is_refused():
    swapped = LLAMA_8B | {"num_params": 525_336_576, "num_params_embedding": 8_030_261_248}
    known = facts(
        world_size=8, tokens_per_step=32_768, precision="bf16", phase="training", seq_len=4096, **swapped
    )

    with pytest.raises(NotMeasurable, match="embedding"):
        mfu(seconds(4.0), devices([A100]), known)


def test_more_than_the_hardware_can_do_is_a_failure():
    # 26.26 % in 2 s is 262.6 % in 0.2 s
    with pytest.raises(CclBenchError, match=r"262\.6 %") as failure:
        mfu(seconds(0.2), devices([A100]), STATED)

    assert type(failure.value) is CclBenchError


def test_ranks_on_different_devices_have_no_one_peak():
    with pytest.raises(NotMeasurable, match=r"A100.*H100"):
        mfu(seconds(2.0), devices([A100], [H100]), STATED)


def test_a_card_does_not_decide_between_ranks_on_different_devices():
    with pytest.raises(NotMeasurable, match="different devices"):
        mfu(seconds(2.0), devices([A100], [H100]), replace(STATED, device=Fact("H100 SXM", "workload card")))


def test_a_stated_peak_serves_ranks_on_different_devices():
    mean_peak = (312 + 989) / 2
    found = mfu(
        seconds(2.0),
        devices([A100], [H100]),
        replace(STATED, gpu_peak_tflops=Fact(mean_peak, "run_metadata.json")),
    )

    assert found.value == pytest.approx(100 * 6.5536e14 / (8 * mean_peak * 1e12))
    assert found.details["device"] == f"{A100[0]} or {H100[0]}"


def test_drivers_that_report_a_little_more_memory_have_the_same_device():
    found = mfu(seconds(2.0), devices([A100], [A100_AFTER_DRIVER_UPDATE]), STATED)

    assert found.details["gpu_peak_tflops"] == 312


def test_a_card_says_which_of_the_devices_of_a_machine_was_used():
    display = ("NVIDIA T400", 1_900_000_000)
    used = replace(STATED, device=Fact("A100-SXM4-80GB", "workload card"))

    found = mfu(seconds(2.0), devices([A100, display], [A100, display]), used)

    assert found.details["gpu_peak_tflops"] == 312


def test_several_steps_count_by_their_mean():
    one, three = (
        mfu(seconds(2.0), devices([A100]), STATED),
        mfu(seconds(1.0, 2.0, 3.0), devices([A100]), STATED),
    )

    assert three.value == pytest.approx(one.value)


def test_a_host_that_runs_ahead_does_not_raise_the_utilisation(corpus: Path, tmp_path: Path):
    # the host leaves each step after 16.0 ms, the four devices complete one every 26.99 ms (truth.json)
    for path in (corpus / "conclusions" / "healthy_nosync").iterdir():
        (tmp_path / path.name).symlink_to(path)
    stated = {"world_size": 4, "tokens_per_step": 8192, "model_flops_per_token": 3e9, "gpu_peak_tflops": 1000}
    (tmp_path / "run_metadata.json").write_text(json.dumps(stated))
    truth = json.loads((corpus / "conclusions" / "truth.json").read_text())["healthy_nosync"]
    of_model = 8192 * 3e9 / (4 * 1000e12)
    run = open_run(tmp_path)
    value, tokens = evaluate(run, ["mfu", "throughput_tokens_sec"], jobs=1)
    assert value.value == pytest.approx(100 * of_model / (truth["wall_per_step"] / 1e3), rel=1e-4)
    assert value.value == pytest.approx(22.76, abs=0.01)  # of ranges of 16.0 ms it would be 38.4 %
    assert tokens.value == pytest.approx(8192 / (truth["wall_per_step"] / 1e3), rel=1e-4)


def write_llama_run(folder: Path, step_s: float, **metadata: object) -> None:
    """Write a run of Llama-3.1-8B without traces: a card and a step time."""
    (folder / "workload_card.yaml").write_text(LLAMA_CARD)
    (folder / "step_times.json").write_text(f"[{step_s}]")


def test_a_card_that_names_a_public_model_is_enough(tmp_path: Path):
    # 8 x 4096 tokens in 4 s; architecture from the catalog, device and precision from the card
    write_llama_run(tmp_path, 4.0)

    (found,) = evaluate(open_run(tmp_path), ["mfu"])

    assert found.value == pytest.approx(100 * 51_471_998_976 * 8192 / (8 * 312e12))
    assert found.provenance.facts["num_layers"] == "catalog, meta-llama/Llama-3.1-8B"
    assert found.provenance.facts["device"] == "workload card"


def test_above_a_hundred_percent_the_result_is_failed_and_the_command_ends_with_1(tmp_path: Path):
    write_llama_run(tmp_path, 0.1)

    (found,) = evaluate(open_run(tmp_path), ["mfu"])

    assert (found.status, found.value) == ("failed", None)
    assert EXIT_STATUS[found.status] == 1
    assert "world_size (workload card)" in found.fix


def test_from_above_a_hundred_percent_there_is_no_value():
    # 16,384 tokens/s of 2.496e15 / 16,384 FLOP each are the whole peak of 8 x 312e12
    whole = 2.496e15 / 16_384
    assert mfu(
        seconds(2.0), devices([A100]), replace(STATED, model_flops_per_token=Fact(whole, "stated"))
    ).value == pytest.approx(100)
    with pytest.raises(CclBenchError, match=r"100\.5 %"):
        mfu(
            seconds(2.0),
            devices([A100]),
            replace(STATED, model_flops_per_token=Fact(1.005 * whole, "stated")),
        )


def test_stated_flops_stand_beside_those_of_the_architecture():
    known = facts(
        world_size=8, tokens_per_step=32_768, precision="bf16", phase="training", seq_len=4096,
        model_flops_per_token=4e10, **LLAMA_8B,
    )  # fmt: skip
    scale = 100 * 8192 / (8 * 312e12)
    found = mfu(seconds(4.0), devices([A100]), known)
    assert found.value == pytest.approx(4e10 * scale)
    assert found.details["other_conventions_pct"] == pytest.approx(
        {
            "causal attention by half (Megatron-LM)": (45_029_548_032 + 6_442_450_944 / 2) * scale,
            "HFU with full recomputation": 51_471_998_976 * 4 / 3 * scale,
            "PaLM, from the architecture": 51_471_998_976 * scale,
        }
    )
    for unclear in (replace(known, phase=None), replace(known, num_layers=None)):
        assert mfu(seconds(4.0), devices([A100]), unclear).details["other_conventions_pct"] == {}


@pytest.mark.parametrize("stated", ["bf16", None])
def test_a_stated_peak_needs_no_precision_and_keeps_one_that_is_known(stated: str | None):
    known = replace(
        STATED,
        gpu_peak_tflops=Fact(400.0, "run_metadata.json"),
        precision=Fact(stated, "card") if stated else None,
    )
    details = mfu(seconds(1.0, 4.0), devices(), known).details
    assert (details["precision"], details["device"]) == (stated or "unknown", "unknown")
    assert details["gpu_peak_tflops"] == 400
    # 32,768 tokens of 4e10 FLOP in 1 and 4 s on 8 devices of 400e12
    whole = 100 * 32_768 * 4e10 / (8 * 400e12)
    assert details["per_step_pct"] == pytest.approx({"0": whole, "1": whole / 4})
    assert details["tokens_per_s"] == pytest.approx(32_768 / 2.5)
    seen = mfu(seconds(4.0), devices(), replace(known, device=Fact("A100 SXM", "card"))).details
    assert seen["device"] == "A100 SXM"


def test_a_model_of_nothing_but_its_embedding_has_the_operations_of_its_attention():
    size = LLAMA_8B["num_params_embedding"]
    known = facts(
        world_size=8, tokens_per_step=32_768, precision="bf16", phase="training", seq_len=4096,
        **(LLAMA_8B | {"num_params": size}),
    )  # fmt: skip
    found = mfu(seconds(4.0), devices([A100]), known)
    assert found.details["model_flops_per_token"] == 6_442_450_944


def types(*rows: tuple[str | None, int, float], narrow: int = 0) -> pl.DataFrame:
    """Return the table of the types of matrix products: type, products and operations."""
    schema = {"dtype": pl.String, "products": pl.Int64, "flops": pl.Float64, "narrow_kernels": pl.Int64}
    return pl.DataFrame([(*row, narrow) for row in rows], schema, orient="row")


UNSTATED = replace(STATED, precision=None)


def test_the_precision_of_recorded_products_gives_the_peak_from_95_percent_of_their_operations_on():
    found = mfu(seconds(2.0), devices([A100]), UNSTATED, types(("fp32", 9, 5e9), ("fp16", 10, 95e9)))

    # the peak in fp16 is that in bf16, as in the test with stated operations
    assert found.value == pytest.approx(26.2564, abs=1e-4)
    assert (found.details["precision"], found.details["gpu_peak_tflops"]) == ("fp16", 312)
    (note,) = found.findings
    assert (note.code, note.severity) == ("precision-recorded", "note")
    assert note.message == "precision fp16 is that of 95 % of the operations of the recorded matrix products"


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        (types(("fp32", 9, 6e9), ("fp16", 10, 94e9)), "94 % fp16, 6 % fp32 of their operations"),
        (types(("fp16", 10, 1e9), (None, 1, 0.0)), "only 90.9 % of the recorded matrix products"),
        (types(("bf16", 10, 1e9), narrow=1), "other kernels multiply elements of 8 bits or less"),
        (types(("fp32", 10, 1e9)), "fp32, which tensor cores may multiply in TF32"),
        (types((None, 10, 0.0)), "the peak is unknown too"),
        (types(), "the peak is unknown too"),
    ],
)
def test_a_precision_that_recorded_products_do_not_show_is_unknown(recorded: pl.DataFrame, why: str):
    with pytest.raises(NotMeasurable, match="precision of the matrix") as refusal:
        mfu(seconds(2.0), devices([A100]), UNSTATED, recorded)
    assert why in refusal.value.message
    assert "bf16" not in (refusal.value.fix or "")


def test_a_stated_precision_counts_whatever_was_recorded():
    found = mfu(seconds(2.0), devices([A100]), STATED, types(("fp16", 10, 1e9)))
    assert (found.details["precision"], [*found.findings]) == ("bf16", [])


@pytest.mark.parametrize(
    ("dtypes", "kernel", "expected"),
    [
        (["c10::Half"] * 19 + ["float"], "ampere_fp16_s1688gemm_fp16_128x64", "fp16"),
        (["c10::Half"] * 18 + ["float"] * 2, "ampere_fp16_s1688gemm_fp16_128x64", None),
        (["c10::BFloat16"], "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n", None),
        (["c10::BFloat16"], "void at::native::copy_kernel<c10::Float8_e4m3fn>()", "bf16"),
    ],
)
def test_the_types_of_products_are_read_from_the_trace(
    tmp_path: Path, dtypes: list[str], kernel: str, expected: str | None
):
    common = {"ph": "X", "pid": 1, "tid": 1, "dur": 5}
    args = {"Input Dims": [[64, 64], [64, 64]]}
    products = [
        common
        | {"cat": "cpu_op", "name": "aten::mm", "ts": 10 * n, "args": args | {"Input type": [each, each]}}
        for n, each in enumerate(dtypes)
    ]
    work = {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": 3, "dur": 5}
    device = {"id": 0, "name": A100[0], "totalGlobalMem": A100[1], "numSms": 108}
    trace = {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": [*products, work]}
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    stated = {"world_size": 1, "tokens_per_step": 100, "model_flops_per_token": 1e9}
    (tmp_path / "run_metadata.json").write_text(json.dumps(stated))
    (tmp_path / "step_times.json").write_text("[1.0]")

    (found,) = evaluate(open_run(tmp_path), ["mfu"], use_cache=False, jobs=1)

    assert found.details.get("precision") == expected
    assert ("precision-recorded" in {finding.code for finding in found.findings}) is (expected is not None)
