"""Rows that others reported elsewhere: read from their files, kept with source, date and licence."""
