"""A simulated Neuron device: ``torch.device("neuron")`` on host memory, in pure Python.

    from porter import sim
    sim.install()
    with sim.record(roots=["overrides"]) as recording:
        kernel(torch.ones(2, 2, device="neuron"))
    print(recording.render())

It needs torch and nothing else, and no other part of porter imports it. It shows what the device would refuse or pay for;
it cannot prove that a graph compiles, nor show the device's rounding, its memory or its speed. Times are estimates.
"""

from __future__ import annotations

from porter.sim.api import install
from porter.sim.codes import CODES, Code
from porter.sim.costs import ESTIMATE, Cost
from porter.sim.errors import DeviceLimitError, SimError, StrictError, TorchInternalError, UnsupportedError
from porter.sim.journal import Entry, Journal
from porter.sim.rates import TABLE, Constant, Rates, rates_from, read_rates
from porter.sim.recording import Recording, record
from porter.sim.strict import Finding, Mode

__all__ = [
    "CODES", "ESTIMATE", "TABLE", "Code", "Constant", "Cost", "DeviceLimitError", "Entry", "Finding", "Journal", "Mode", "Rates",
    "Recording", "SimError", "StrictError", "TorchInternalError", "UnsupportedError", "install", "rates_from", "read_rates", "record",
]  # fmt: skip
