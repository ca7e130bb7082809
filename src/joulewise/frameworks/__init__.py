"""Hooks into training frameworks: how a job tells its steps and phases. Loads nothing outside the standard library."""
