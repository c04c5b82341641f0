"""Which CPUs a worker and its helpers run on."""

from __future__ import annotations

import logging
import os

from deep_cluster.hardware import neuron
from deep_cluster.topology import set_cpu_affinity

logger = logging.getLogger("deepinfer.neuron_ops")


def cpus_of(core: int) -> list[int]:
    """CPUs next to logical core ``core`` that this process may use; empty where nothing is known or the host plays it."""
    try:
        wanted = neuron.cpus_for_core(core)
    except IndexError:
        return []
    return sorted(set(wanted) & os.sched_getaffinity(0))


def bind_worker(core: int) -> None:
    """Bind this process to the CPUs of logical core ``core``; leave it alone where they are not known."""
    cpus = cpus_of(core)
    if cpus:
        set_cpu_affinity(cpus)
        logger.info("core %d: bound to CPUs %s", core, cpus)


def helper_cpus(core: int, wanted: int) -> list[int]:
    """At most ``wanted`` CPUs for helper threads beside the worker of ``core``; empty means unbound."""
    return cpus_of(core)[:wanted]
