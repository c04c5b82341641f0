"""Drop-in packages that stand in for DeepInfer's vendor libraries on Neuron (imported by their own top-level names)."""
