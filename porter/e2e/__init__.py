"""The engine end to end, measured and compared."""
