"""Hand-written kernel bodies for the Neuron backend, one module for each upstream module it replaces."""
