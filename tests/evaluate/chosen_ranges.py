"""Record six ranges of a name of its own, numbered anew in each epoch.

chosen_ranges.py FOLDER: writes FOLDER/trace_rank0.json.
"""

import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile, record_function

if __name__ == "__main__":
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        for _ in range(2):
            for number in range(3):
                with record_function(f"my pass {number}"):
                    time.sleep(0.01)
                    with record_function("my pass inside"):
                        torch.ones(4) + 1
    recording.export_chrome_trace(f"{sys.argv[1]}/trace_rank0.json")
