"""Findings, plans and drift in the forms that people and machines read."""
