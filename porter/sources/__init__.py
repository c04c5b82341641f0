"""Where the upstream is: distributions and folders, found, checked and unpacked; never built, never imported."""
