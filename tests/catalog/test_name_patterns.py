"""Expressions for names find what Python's own search finds, with and without the words they need."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccl_bench.catalog import load_data
from ccl_bench.catalog.data_files import NamePattern, needed_words

RULES = [
    row["match"]
    for file, kind in (("kernel_types", "rule"), ("collectives", "kernel"), ("collectives", "fused"))
    for row in load_data(file)[kind]
]
PATTERNS = {expression: NamePattern(expression) for expression in RULES}
_TOKENS = sorted({token for rule in RULES for token in re.findall(r"\w+|::|[<>.]", rule)} | {"ſ", "K", "İ"})

_names = st.lists(st.sampled_from(_TOKENS) | st.text(max_size=3), max_size=6).map("".join)


@given(name=_names | st.one_of(st.from_regex(re.compile(rule)) for rule in RULES[:12]))
def test_every_rule_finds_what_a_plain_search_finds(name):
    for expression, pattern in PATTERNS.items():
        assert pattern.is_in(name) == (re.search(expression, name) is not None), expression


@pytest.mark.parametrize("rule", RULES)
def test_what_a_rule_matches_holds_one_of_its_words(rule):
    @settings(max_examples=5)
    @given(found=st.from_regex(rule, alphabet=st.characters(codec="ascii")))
    def check(found):
        assert PATTERNS[rule].is_in(found)

    check()


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("gemm", {"gemm"}),
        ("(?i)Gemm|MatMul", {"gemm", "matmul"}),
        (r"(?:^|[^a-z])fmha|flash_?(?:fwd|bwd)", {"fmha", "flash"}),
        (r"[fdw]grad", {"grad"}),
        (r"nvshmem.*(?:barrier|sync)", {"nvshmem"}),
        (r"(?:layer)+norm", {"layer"}),
        (r"(?:layer)?norm", {"norm"}),
        (r"(?<!rotary_)embedding", {"embedding"}),
        (r"\w+_kernel", {"_kernel"}),
        ("abc|x", set()),
        (r"\w+kernel", set()),
        ("(?:a|bcd)", set()),
        ("", set()),
    ],
)
def test_words_that_each_match_holds_one_of(expression, words):
    assert needed_words(expression) == words


def test_nearly_every_rule_of_the_catalogue_needs_a_word():
    assert len([rule for rule in RULES if not needed_words(rule)]) <= 3
