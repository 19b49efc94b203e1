"""Communication across ranks: calls and their groups, matching, waiting, clocks, bandwidth, traffic."""
