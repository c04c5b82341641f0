"""porter: reads DeepInfer and its vendor packages, emits their Neuron backend, and says exactly what changed."""

__version__ = "0.1.0"
