"""Arithmetic on tables: no file is opened here."""
