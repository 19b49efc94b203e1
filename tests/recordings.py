"""Programs that torch records, all in children of the process that has loaded torch: see forking/loaded.py.

recordings.py FOLDER: runs each of `PROGRAMS` with a folder of its own below this one to write to.
"""

from __future__ import annotations

import gc
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launchers import LOADED, LOADED_FOR
from shared import made_once, to_record

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent

PROGRAMS = {
    "chosen ranges": "evaluate/chosen_ranges.py",
    "delayed ranks": "analysis/communication/gloo_ddp.py",
    "hangs": "analysis/recorder/gloo_hangs.py",
    "groups": "analysis/communication/gloo_groups.py",
    "loops": "analysis/training_loops.py",
    "sharded": "analysis/device/sharded_training.py",
    "checkpointed": "diagnosis/checkpointed_training.py",
}


def recording(factory: pytest.TempPathFactory, name: str) -> Path:
    """Return the folder that a program wrote to, for tests to read; who asks first runs them all."""
    to_record("torch")
    return made_once(factory, "recordings", _record)[0] / name


def _record(folder: Path) -> None:
    variables = {"OMP_NUM_THREADS": "1", **LOADED_FOR}
    subprocess.run([*LOADED, __file__, str(folder)], check=True, timeout=600, env=os.environ | variables)
    for store in folder.rglob("store"):  # in which ranks found each other
        store.unlink()


def main(folder: Path) -> None:
    """Run the programs one after the other; end with an error where one does."""
    gc.disable()  # What is imported stays: looking for garbage in it takes as long as importing it.
    import torch._inductor.config  # noqa: F401  the profiler imports it when it starts
    from forking import lasting_groups  # noqa: F401

    gc.freeze()
    gc.enable()
    for name, program in PROGRAMS.items():
        (folder / name).mkdir()
        if os.fork() == 0:
            sys.argv = [program, str(folder / name)]
            runpy.run_path(str(HERE / program), run_name="__main__")
            sys.exit()
        if os.wait()[1]:
            sys.exit(f"{program} failed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
