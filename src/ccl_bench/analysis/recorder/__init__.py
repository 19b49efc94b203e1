"""Analysis of Flight Recorder dumps of several ranks: which rank is missing and where, and which is late."""
