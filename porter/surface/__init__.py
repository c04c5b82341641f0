"""Reading an upstream: what it offers, as data. Nothing here executes or imports the upstream."""
