"""The engine end to end against an implementation that somebody else wrote, run live in an environment of its own."""
