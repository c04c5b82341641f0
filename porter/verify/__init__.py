"""Upstream's own kernel tests, run on the emitted backend.

The rooms: ``workspace`` and ``shrink`` make the throw-away tree; ``device``, ``platform``, ``references``, ``masks``,
``recorder`` and ``limits`` are what the tests run under; ``judge`` turns an outcome into a verdict; ``plugin`` ties them
to pytest; ``report`` adds the verdicts up; ``api.run`` is the one call from outside.

Nothing here is imported by the tool's other rooms, and nothing but ``plugin`` and what it installs imports torch.
"""
