"""What Flight Recorder dumps of several ranks show together: who is missing where, and who comes late."""
