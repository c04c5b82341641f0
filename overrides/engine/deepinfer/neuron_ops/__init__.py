"""DeepInfer on AWS Neuron: start-up, device names, host helpers and the vendor packages.

``bootstrap`` runs while ``import deepinfer`` does and must stay free of torch; everything else is loaded when
``deepinfer.PLATFORM`` is first asked for, or later. Nothing here is imported on other accelerators.

Environment variables of its own:

- ``DEEPINFER_ACCELERATOR=neuron`` chooses the platform (upstream's variable; keep it set at run time);
- ``DEEPINFER_NEURON_DEVICE``: ``neuron`` (default) computes on a NeuronCore through TorchNeuron, ``cpu`` on the host;
- ``DEEPINFER_NEURON_MEMORY_GB``: memory the engine may plan with, in GiB. By default what the core reports, and 1 on
  the host, where it is the budget of the caches.
"""
