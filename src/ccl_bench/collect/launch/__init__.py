"""Running the command that is recorded: wrapping it, passing its output on, saying why it failed."""
