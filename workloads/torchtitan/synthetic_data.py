"""A tokenizer and a text for torchtitan, so that a workload can be tried without a download.

    python synthetic_data.py FOLDER

FOLDER then holds `tokenizer/`, one token for each byte, and `text/`, laid out as torchtitan's c4_test. What a
step costs does not depend on the words, except where experts are chosen by them.
"""

import json
import os
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BEGIN, END = "<s>", "</s>"
DOCUMENTS, WORDS, LENGTH, LETTERS = 2000, 400, 5, "abcdefghij"


def tokenizer() -> Tokenizer:
    """Return a tokenizer with one token for each byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(
        models.BPE(vocab={token: number for number, token in enumerate([BEGIN, END, *letters])}, merges=[])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([BEGIN, END])
    return made


def documents() -> list[str]:
    """Return lines of JSON with one text each, the same every time."""
    chance = random.Random(0)  # noqa: S311 (a text, no secret)
    return [json.dumps({"text": text(chance)}) + "\n" for _ in range(DOCUMENTS)]


def text(chance: random.Random) -> str:
    """Return words of letters by chance."""
    letters = "".join(chance.choices(LETTERS, k=WORDS * LENGTH))
    return " ".join(letters[begin : begin + LENGTH] for begin in range(0, len(letters), LENGTH))


def written(path: Path, text: str) -> None:
    """Write a file beside its place and rename it, because several jobs may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    config = {"bos_token": BEGIN, "eos_token": END, "add_bos_token": True, "add_eos_token": True}
    written(folder / "tokenizer" / "tokenizer.json", tokenizer().to_str())
    written(folder / "tokenizer" / "tokenizer_config.json", json.dumps(config))
    written(folder / "text" / "data.jsonl", "".join(documents()))
