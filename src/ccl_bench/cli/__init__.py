"""The commands: parse, call the library, print."""
