"""DeepInfer on the emitted backend, from prompt to text: tiny checkpoints, and a run of the engine's own offline inference."""
