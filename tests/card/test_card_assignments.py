"""Assignments to fields of a card: the field, how its value is read, and what stays in the file."""

from __future__ import annotations

import pytest

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.card import assigned, card_in_text, field_path, read_value, template

PLAN = "Model-executor.model_plan_parallelization"
LINKS = "workload.hardware.network_topo.bandwidth_gbps"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("precision", "workload.model.precision"),
        ("framework.version", "Model-executor.framework.version"),
        ("version", "version"),  # a whole path comes before the ends of others
        ("hardware.device.model", "workload.hardware.xpu_spec.model"),  # by its attribute
        ("Micro-Batch", f"{PLAN}.pp_mb"),  # by a synonym
        ("scale_up", f"{LINKS}.scale_up"),
        ("communication_library.env.NCCL_DEBUG", "Model-executor.communication_library.env.NCCL_DEBUG"),
    ],
)
def test_the_end_of_a_path_names_a_field(name, path):
    assert field_path(name) == path


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("precison", "did you mean precision?"),
        ("framework.versoin", "framework.version"),
        ("topology", "workload.hardware.network_topo.topology, workload.hardware.xpu_spec.topology"),
        ("env.NCCL_DEBUG", "env"),
        ("zzz", "workload_card_template.yaml"),
    ],
)
def test_an_unknown_or_ambiguous_field_is_refused_with_a_fix(name, fix):
    with pytest.raises(UsageError) as refused:
        field_path(name)
    assert fix in (refused.value.fix or "")


def test_values_are_read_as_those_of_a_card():
    values = {"precision": "bfloat16", "phase": "Pre-Training", "scale_up": "2400 Gbit/s", "moe": "yes"}
    read = {name: read_value(field_path(name), text) for name, text in values.items()}
    assert read == {"precision": "bf16", "phase": "training", "scale_up": 2400, "moe": True}
    assert read_value("metric_source.traces", "json, nsys") == ("json", "nsys")
    assert read_value("Model-executor.framework.version", "2.10") == "2.10"  # not the number 2.1
    assert read_value("workload.model.phase", "unknown") is None
    for name, text in [("precision", "bf99"), ("tp", "x"), ("num_layers", "-3"), ("framework.env", "a")]:
        with pytest.raises(UsageError) as refused:
            read_value(field_path(name), text)
        assert refused.value.fix


CARD = """\
# mine
workload:
  data: {}
  hardware:
    network_topo:
      bandwidth_gbps:  # as sold
        - 200  # between nodes
        - 900
  model:
    precision: 'fp8 # 4'  # the type
Model-executor:
  framework:
    version: "2.1"
    name: 'a''b'# c
metric_source:
  traces:
    - json
    - nsys
  metrics_specific_trace: [memory_snapshot]  # one
"""


def test_a_value_is_replaced_and_every_other_character_stays():
    changes = {
        f"{LINKS}.scale_out": 100.0,
        "workload.model.precision": "bf16",
        "Model-executor.framework.version": "2.10",
        "metric_source.traces": ("json",),
        "metric_source.metrics_specific_trace": None,
        "workload.model.phase": "training",
    }
    expected = CARD
    for before, after in [
        ("- 200  #", "- 100  #"),
        ("'fp8 # 4'", "bf16"),
        ('"2.1"', '"2.10"'),
        ("traces:\n    - json\n    - nsys\n", "traces: [json]\n"),
        (" [memory_snapshot]", ""),
        ("  # the type\n", "  # the type\n    phase: training\n"),
    ]:
        expected = expected.replace(before, after)
    changed = assigned(CARD, changes)
    assert changed == expected
    assert assigned(changed, changes) == changed
    assert assigned(CARD.replace("\n", "\r\n"), changes) == expected.replace("\n", "\r\n")


@pytest.mark.parametrize(
    "text",
    [
        "description: >\n  two\n  lines\n",  # its lines cannot be removed one by one
        "description: [a,\n  b]\n",
        "description: !!str a # b\ncontact: &x |\n  y\n",
        "description: one\ndescription: two\n",  # only one of them would change
        "{description: x, contact: y}\n",
    ],
)
def test_a_style_that_cannot_be_changed_is_refused(text):
    with pytest.raises(InputError):
        assigned(text, {"description": "a", "contact": "z"})


def test_the_template_takes_every_kind_of_value():
    texts = {"tp": "4", "price_per_device_hour": "2.5", "traces": "json, nsys", "request_rate": "inf"}
    values = {field_path(name): read_value(field_path(name), text) for name, text in texts.items()}
    card = card_in_text(assigned(template(), values)).value
    assert (card.parallelism.tp, card.hardware.price_per_device_hour) == (4, 2.5)
    assert card.metric_source.traces == ("json", "nsys")
    assert card.data.serving.request_rate == float("inf")
