"""Migrations, one numbered module each."""
