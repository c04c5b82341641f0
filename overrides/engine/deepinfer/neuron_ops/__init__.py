"""DeepInfer on AWS Neuron: start-up, device names, host helpers and the vendor packages.

``bootstrap`` runs while ``import deepinfer`` does and must stay free of torch; everything else is loaded when
``deepinfer.PLATFORM`` is first asked for, or later. Nothing here is imported on other accelerators.
"""
