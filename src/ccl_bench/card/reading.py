"""Reading a workload card, with every mistake and its line."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.base.registry import did_you_mean, spelling
from ccl_bench.card.fields import GRANULARITIES, TRACE_TYPES, BatchScope, Phase
from ccl_bench.card.model import Card
from ccl_bench.card.sections import read_section
from ccl_bench.card.yaml_tree import (
    IssueLog,
    MappingNode,
    Reading,
    ScalarNode,
    SequenceNode,
    is_absent,
    mapping_of,
    node_at,
    replaced_at,
    shown,
    yaml_mapping,
)
from ccl_bench.catalog import devices
from ccl_bench.storage.files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping as AnyMapping

    from ccl_bench.storage.files import Location

KNOWN_VERSION = 1
PLAN = "Model-executor.model_plan_parallelization"
DEVICE = "workload.hardware.xpu_spec"
MODEL = "workload.model"
DATA = "workload.data"
LINKS = "workload.hardware.network_topo.bandwidth_gbps"
MISSING = "is missing; metrics that need it are refused"
_SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL|PRIVATE_KEY)", re.IGNORECASE)


def check_card(card: Card, log: IssueLog) -> None:
    """Record contradictions and likely slips in `card`."""
    if card.version not in (None, KNOWN_VERSION):
        log.note("version", f"{card.version} is read as version {KNOWN_VERSION}", f"write {KNOWN_VERSION}")
    for check in (
        _missing,
        _degrees,
        _devices,
        _links,
        _experts,
        _architecture,
        _phase,
        _batch,
        _words,
        _publication,
    ):
        check(card, log)


def missing_fields(card: Card) -> list[str]:
    """Return the paths of fields that many metrics need and that the card does not state."""
    needed = {
        f"{MODEL}.phase": card.model.phase,
        f"{MODEL}.model_family": card.model.model_family,
        f"{MODEL}.precision": card.model.precision,
        f"{DATA}.seq_len": card.data.seq_len or card.data.input_len,
        f"{DEVICE}.model": card.hardware.device.model,
        f"{DEVICE}.total_count": card.hardware.device.device_count,
        "Model-executor.framework.name": card.framework.name,
        "metric_source.traces": card.metric_source.traces,
    }
    return [path for path, value in needed.items() if not value]


def _missing(card: Card, log: IssueLog) -> None:
    failed = {issue.path for issue in log.entries}
    for path in missing_fields(card):
        if path not in failed:
            log.warning(path, MISSING, "fill it in")


def _degrees(card: Card, log: IssueLog) -> None:
    plan, device_count = card.parallelism, card.hardware.device.device_count
    if plan.dp and (plan.dp_replicate or plan.dp_shard) and plan.dp != plan.data_parallel:
        log.error(
            f"{PLAN}.dp",
            f"{plan.dp} is not dp_replicate x dp_shard = {plan.data_parallel}",
            "keep dp_replicate and dp_shard",
        )
    if plan.world_size and device_count and plan.world_size != device_count:
        log.error(
            f"{PLAN}.world_size",
            f"{plan.world_size} differs from {DEVICE}.total_count = {device_count}",
            "correct one of them",
        )
    ranks = device_count or plan.world_size
    product = plan.product * card.executor.experts_own_ranks
    if ranks is None or product == ranks:
        return
    if card.has_spanning_experts:
        log.note(
            f"{PLAN}.ep",
            f"{plan.ep} is read as spanning the ranks of dp and tp: it does not multiply the {ranks} ranks",
            f"write the dp and tp of the server: their product must be {ranks // product} times as large",
        )
        return
    message = f"the product of the degrees is {product}, but there are {ranks} devices"
    if plan.complete_product is None and ranks % product == 0:
        if product > 1:
            log.warning(PLAN, message, "write the missing degrees")
    elif plan.ep and product * plan.ep == ranks:
        message += f"; ep = {plan.ep} uses the ranks of dp and tp, and is no factor of the product"
        log.error(
            PLAN,
            message,
            f"write the dp and tp that ep uses: their product must be {ranks // product} times as large",
        )
    else:
        log.error(PLAN, message, f"correct the degrees or {DEVICE}.total_count")


def _devices(card: Card, log: IssueLog) -> None:
    device = card.hardware.device
    total, per_node, nodes = device.device_count, device.devices_per_node, device.node_count
    if total and per_node and total > per_node and total % per_node:
        log.warning(
            f"{DEVICE}.count_per_node",
            f"{total} devices do not fill nodes of {per_node}",
            "correct one of them",
        )
    if total and per_node and nodes and not per_node * (nodes - 1) < total <= per_node * nodes:
        log.warning(
            f"{DEVICE}.num_nodes",
            f"{nodes} nodes of {per_node} do not hold {total} devices",
            "correct one of them",
        )


_ALIKE = 0.02
"""Share by which two bandwidths may differ and still be the same rounded figure."""


def _links(card: Card, log: IssueLog) -> None:
    """Warn of a link inside a node that is impossible in Gbit/s, or is the catalog's figure in GB/s."""
    stated_rate, name = card.hardware.network.bandwidth.scale_up, card.hardware.device.model
    link_rates = [devices.device(model).link_bytes_per_s for model in devices.models(name or "")]
    catalog_rates = sorted({8 * rate / 2 / 1e9 for rate in link_rates if rate})  # Gbit/s in one direction
    if stated_rate is None or not catalog_rates or any(_alike(stated_rate, rate) for rate in catalog_rates):
        return
    intended = next(
        (rate for rate in catalog_rates if _alike(4 * stated_rate, rate) or _alike(8 * stated_rate, rate)),
        None,
    )
    if intended is None and stated_rate < catalog_rates[-1]:
        return
    is_one_way = intended is not None and _alike(8 * stated_rate, intended)
    catalog_rate = intended or catalog_rates[-1]
    device = shown(name or "")
    message = (
        f"{_both_units(stated_rate)} is not what a {device} has: {_both_units(catalog_rate)} in one direction"
    )
    if intended is not None:
        message += f"; {stated_rate:g} is that in GB/s{'' if is_one_way else ' and in both directions'}"
    log.warning(f"{LINKS}.scale_up", message, f"write {catalog_rate:g}, or correct {DEVICE}.model")


def _alike(rate: float, catalog_rate: float) -> bool:
    return abs(rate - catalog_rate) <= _ALIKE * catalog_rate


def _both_units(gigabits: float) -> str:
    return f"{gigabits:g} Gbit/s ({gigabits / 8:g} GB/s)"


def _experts(card: Card, log: IssueLog) -> None:
    plan, sizes = card.parallelism, card.model.architecture
    ranks_of_stage = plan.product // (plan.pp or 1)
    ranks = card.hardware.device.device_count or plan.world_size
    is_whole = ranks in {None, plan.product}
    if plan.ep and plan.data_parallel and is_whole and ranks_of_stage % plan.ep:
        log.warning(
            f"{PLAN}.ep",
            f"{plan.ep} does not divide the {ranks_of_stage} ranks of a pipeline stage",
            "correct the degree",
        )
    if card.model.is_moe is False and ((plan.ep or 1) > 1 or (sizes.num_experts or 1) > 1):
        log.warning(f"{MODEL}.moe", "is false although the card states several experts", "write moe: true")
    if card.model.is_moe and sizes.num_params and not sizes.num_params_active:
        log.warning(
            f"{MODEL}.model_arch.num_params_active",
            "is missing; mfu of a mixture of experts needs it",
            "fill it in",
        )


def _architecture(card: Card, log: IssueLog) -> None:
    sizes, path = card.model.architecture, f"{MODEL}.model_arch"
    for name, key in (
        ("num_params_embedding", "num_params"),
        ("num_params_active", "num_params"),
        ("num_kv_heads", "num_heads"),
        ("num_experts_per_token", "num_experts"),
    ):
        part, total = getattr(sizes, name), getattr(sizes, key)
        if part and total and part > total:
            shown_key = "num_experts_per_tok" if name == "num_experts_per_token" else name
            log.error(f"{path}.{shown_key}", f"{part} is more than {key} = {total}", "correct one of them")
    if sizes.num_heads and sizes.num_kv_heads and sizes.num_heads % sizes.num_kv_heads:
        log.warning(
            f"{path}.num_kv_heads",
            f"{sizes.num_kv_heads} does not divide num_heads = {sizes.num_heads}",
            "correct one of them",
        )


def _phase(card: Card, log: IssueLog) -> None:
    model, data = card.model, card.data
    if model.phase is Phase.INFERENCE and spelling(model.granularity or "") == "model_fwd_bwd_pass":
        log.warning(f"{MODEL}.granularity", "inference has no backward pass", "write model_fwd")
    if model.phase is Phase.INFERENCE and data.seq_len and data.input_len and data.output_len:
        total = data.input_len + data.output_len
        if data.seq_len not in (data.input_len, total):
            log.warning(
                f"{DATA}.seq_len",
                f"{data.seq_len} is neither input_len nor input_len + output_len = {total}",
                "correct one of them",
            )
    if model.phase is Phase.TRAINING and data.output_len:
        log.warning(f"{DATA}.output_len", "is not used in training", "leave it empty")


def _batch(card: Card, log: IssueLog) -> None:
    data, plan = card.data, card.parallelism
    degree = plan.data_parallel or 1
    if data.batch_size is None or degree == 1 or data.batch_size_scope is BatchScope.LOCAL:
        return
    if data.batch_size_scope is None:
        log.note(
            f"{DATA}.batch_size",
            "is read as the batch of all ranks together",
            "write batch_size_scope: global or local",
        )
    elif data.batch_size % degree:
        log.warning(
            f"{DATA}.batch_size",
            f"{data.batch_size} does not divide among {degree} data-parallel ranks",
            "correct one of them",
        )


def _words(card: Card, log: IssueLog) -> None:
    granularity = card.model.granularity
    if granularity and spelling(granularity) not in GRANULARITIES:
        log.warning(
            f"{MODEL}.granularity",
            f"{shown(granularity)} is not a known granularity",
            _hint(granularity, GRANULARITIES),
        )
    for index, name in enumerate(card.metric_source.traces):
        if spelling(name) not in TRACE_TYPES:
            log.warning(
                f"metric_source.traces[{index}]",
                f"{shown(name)} is not a known kind of trace",
                _hint(name, TRACE_TYPES),
            )


def _hint(word: str, known_words: tuple[str, ...]) -> str:
    return did_you_mean(spelling(word), known_words) or f"known: {', '.join(known_words)}"


def _publication(card: Card, log: IssueLog) -> None:
    for path, text in (("hf_url", card.hf_url), ("trace_url", card.trace_url)):
        if text and re.search(r"://[^/]*@", text):
            log.warning(path, "contains a user name or password, but cards are published", "remove it")
    if card.contact and not re.fullmatch(r"[^\s@]+@[^\s@]+|https?://\S+", card.contact):
        log.warning(
            "contact",
            f"{shown(card.contact)} is neither a mail address nor a web address",
            "write how to reach you",
        )
    for path, env in (
        ("framework.env", card.framework.env),
        ("communication_library.env", card.executor.communication_library.env),
    ):
        for name in filter(_SECRET.search, env):
            log.warning(
                f"Model-executor.{path}.{shown(name)}",
                "looks like a secret, but cards are published",
                "remove it",
            )


_TOP_KEYS = frozenset({"workload", "model_executor", "metric_source", "hf_url", "trace_url"})
_WORKLOAD_KEYS = frozenset({"model", "data", "hardware"})


def read_card(path: Location) -> Reading[Card]:
    """Return the card in a YAML file; InputError only where the file holds no mapping at all."""
    return card_in_text(read_text(path), file=str(path))


def card_in_text(text: str, *, file: str = "") -> Reading[Card]:
    """Return the card in YAML text; `file` names it in messages."""
    log = IssueLog(file)
    return _reading(yaml_mapping(text, log), log)


def card_in_mapping(mapping: AnyMapping[str, object], *, file: str = "") -> Reading[Card]:
    """Return the card in plain data laid out as the file is, such as a form or JSON document."""
    return _reading(mapping_of(mapping), IssueLog(file))


def _reading(root: MappingNode, log: IssueLog) -> Reading[Card]:
    root = _with_lone_link(root, log)
    card = read_section(root, Card, log, unknown=log.warning)
    check_card(card, log)
    return Reading(card, log.in_order(), log.file)


_LINK_KEYS = ("workload", "hardware", "network_topo", "bandwidth_gbps")
_DEVICE_KEYS = ("workload", "hardware", "xpu_spec")


def _with_lone_link(root: MappingNode, log: IssueLog) -> MappingNode:
    """Return the card in which a single bandwidth is the link inside the node, where the run has one node."""
    bandwidth = node_at(root, _LINK_KEYS)
    items = bandwidth.items if isinstance(bandwidth, SequenceNode) else (bandwidth,)
    if bandwidth is None or len(items) != 1 or not isinstance(items[0], ScalarNode) or is_absent(items[0]):
        return root
    total, per_node = (node_at(root, (*_DEVICE_KEYS, key)) for key in ("total_count", "count_per_node"))
    counts = [node.value for node in (total, per_node) if isinstance(node, ScalarNode)]
    whole = [count for count in counts if isinstance(count, int)]
    if len(whole) < 2 or whole[0] > whole[1]:
        return root
    message = "its one value is read as scale_up: the run has one node"
    log.note(LINKS, message, "write scale_up: before it", line=bandwidth.line)
    pair = SequenceNode((ScalarNode(None, "", bandwidth.line), items[0]), bandwidth.line)
    return replaced_at(root, _LINK_KEYS, pair)


def is_card(mapping: object) -> bool:
    """Whether data read from a YAML file has a workload card's keys."""
    if not hasattr(mapping, "items"):
        return False
    keys = {spelling(str(key)): value for key, value in mapping.items()}
    workload = keys.get("workload")
    inner = {spelling(str(key)) for key in workload or ()} if hasattr(workload, "items") else set()
    return bool(inner & _WORKLOAD_KEYS) or len(keys.keys() & _TOP_KEYS) >= 2


def is_card_file(path: Location) -> bool:
    """Whether a file is YAML with a workload card's keys; never raises for what the file holds."""
    try:
        root = yaml_mapping(read_text(path), IssueLog(str(path)))
    except InputError:
        return False
    shape = {
        entry.key: dict.fromkeys(inner.key for inner in entry.node.entries)
        if isinstance(entry.node, MappingNode)
        else None
        for entry in root.entries
    }
    return is_card(shape)


@cache
def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a card's file, for editors and upload forms."""
    schema = Card.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
